// Draws the figures of the page as SVG, from the numbers in #drawings: with values where the pointer is, and enlarged
// where it is dragged. The keyboard does the same: arrows, + and -, 0.
(() => {
  "use strict";
  const drawings = JSON.parse(document.getElementById("drawings").textContent);
  const NEAR = 45; // pixels from the pointer within which a point is found
  const MARKS = 10; // on a line, about

  const element = (name, attributes = {}, parent = null, text = "") => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text) made.textContent = text;
    if (parent) parent.append(made);
    return made;
  };

  const html = (name, properties = {}, parent = null) => {
    const made = Object.assign(document.createElement(name), properties);
    if (parent) parent.append(made);
    return made;
  };

  // Numbers as a reader expects them: 20,000 and 1.5138 and 1e-9.
  const written = (value, digits = 5) => {
    if (value === null || !Number.isFinite(value)) return "not finite";
    const size = Math.abs(value);
    if (size && (size < 1e-3 || size >= 1e7)) return value.toExponential(digits - 3).replace(/\.?0+e/, "e").replace("e+", "e");
    if (Number.isInteger(value)) return value.toLocaleString("en-US");
    return Number(value.toPrecision(Math.max(digits, Math.ceil(Math.log10(size + 1))))).toLocaleString("en-US", { maximumFractionDigits: 7 });
  };

  // Round places between two ends, in the units of the axis.
  const ticks = ([low, high], logarithmic, count) => {
    if (logarithmic) {
      const places = [];
      const every = Math.max(1, Math.ceil((high - low) / count));
      const between = high - low < 2.5 ? [1, 2, 5] : [1];
      for (let power = Math.floor(low); power <= Math.ceil(high); power += every) {
        for (const factor of between) places.push(power + Math.log10(factor));
      }
      const inside = places.filter((place) => place >= low - 1e-9 && place <= high + 1e-9);
      if (inside.length > 1) return inside.map((place) => [place, written(10 ** place, 3)]);
    }
    const rough = (high - low) / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
    const places = [];
    for (let number = Math.ceil(low / step - 1e-9); number * step <= high + 1e-9 * step; number++) places.push(number * step);
    const digits = Math.max(1, Math.ceil(Math.log10(Math.max(Math.abs(low), Math.abs(high)) / step)) + 1);
    return places.map((place) => {
      const value = logarithmic ? 10 ** place : place;
      return [place, Math.abs(place) < step * 1e-6 && !logarithmic ? "0" : written(Number(value.toPrecision(12)), logarithmic ? 3 : digits)];
    });
  };

  const SHAPES = {
    o: (r) => `M${-r},0a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0Z`,
    s: (r) => `M${-r},${-r}H${r}V${r}H${-r}Z`,
    "^": (r) => `M0,${-r * 1.2}L${r * 1.1},${r * 0.9}H${-r * 1.1}Z`,
    v: (r) => `M0,${r * 1.2}L${r * 1.1},${-r * 0.9}H${-r * 1.1}Z`,
    "<": (r) => `M${-r * 1.2},0L${r * 0.9},${-r * 1.1}V${r * 1.1}Z`,
    D: (r) => `M0,${-r * 1.25}L${r * 1.25},0L0,${r * 1.25}L${-r * 1.25},0Z`,
    P: (r) => `M${-r / 3},${-r}H${r / 3}V${-r / 3}H${r}V${r / 3}H${r / 3}V${r}H${-r / 3}V${r / 3}H${-r}V${-r / 3}H${-r / 3}Z`,
    X: (r) => `M${-r},${-r * 0.5}L${-r * 0.5},${-r}L0,${-r * 0.5}L${r * 0.5},${-r}L${r},${-r * 0.5}L${r * 0.5},0L${r},${r * 0.5}L${r * 0.5},${r}L0,${r * 0.5}L${-r * 0.5},${r}L${-r},${r * 0.5}L${-r * 0.5},0Z`,
    "*": (r) => "M" + [...Array(10).keys()].map((n) => `${(Math.sin((n * Math.PI) / 5) * r * (n % 2 ? 0.5 : 1.4)).toFixed(2)},${(-Math.cos((n * Math.PI) / 5) * r * (n % 2 ? 0.5 : 1.4)).toFixed(2)}`).join("L") + "Z",
  };
  const colours = (look) => `--light:${look.colour};--dark:${look.inDark}`;
  const marker = (look, x, y, parent, size = 3.2) =>
    element("path", {
      class: `curve ${look.hollow ? "hollow" : "filled"}`, style: colours(look),
      d: (SHAPES[look.marker] || SHAPES.o)(size), transform: `translate(${x.toFixed(1)},${y.toFixed(1)})`,
    }, parent);

  // A place for a chart: its size, its axes, and the values shown beside the pointer.
  class Plot {
    constructor(holder, chart) {
      this.holder = holder;
      this.chart = chart;
      this.frame = holder.parentElement;
      this.tip = this.frame.querySelector(".tip");
      holder.addEventListener("keydown", (event) => this.key(event));
      holder.addEventListener("focus", () => holder.matches(":focus-visible") && this.step(0, 0));
      holder.addEventListener("blur", () => this.point(null));
      holder.addEventListener("pointerleave", () => this.point(null));
      new ResizeObserver(() => holder.clientWidth && holder.clientWidth !== this.width && this.draw()).observe(holder);
    }

    begin(left) {
      this.width = this.holder.clientWidth;
      this.height = Math.round(Math.min(380, Math.max(230, this.width * 0.62)));
      this.box = { left, right: this.width - 12, top: 12, bottom: this.height - 42 };
      this.svg = element("svg", { viewBox: `0 0 ${this.width} ${this.height}`, "aria-hidden": "true" });
      this.holder.replaceChildren(this.svg);
      const { right, top, bottom } = this.box;
      element("text", { class: "label", x: (left + right) / 2, y: this.height - 6, "text-anchor": "middle" }, this.svg, this.chart.xLabel);
      element("text", { class: "label", transform: `translate(13,${(top + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, this.svg, this.chart.yLabel);
    }

    // Shows lines of text beside a place of the plot; the first in bold.
    say(lines, x, y) {
      this.tip.replaceChildren(...lines.map((line, number) => html(number ? "div" : "b", { textContent: line })));
      this.tip.hidden = false;
      const { offsetWidth: width, offsetHeight: height } = this.tip;
      const beside = x + 14 + width > this.width ? x - 14 - width : x + 14;
      this.tip.style.left = `${Math.max(0, beside)}px`;
      this.tip.style.top = `${Math.max(0, Math.min(y - height / 2, this.height - height))}px`;
    }

    key(event) {
      const moves = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key in moves) this.step(...moves[event.key]);
      else if (event.key === "+" || event.key === "=") this.scale(0.5);
      else if (event.key === "-") this.scale(2);
      else if (event.key === "0" || event.key === "Escape") this.reset();
      else return;
      event.preventDefault();
    }

    scale() {}
    reset() {}
  }

  class Lines extends Plot {
    constructor(holder, chart) {
      super(holder, chart);
      this.logarithmic = { x: chart.logarithmic.includes("x"), y: chart.logarithmic.includes("y") };
      this.series = chart.series.map((series) => {
        const x = drawings.lists[series.x], y = drawings.lists[series.y];
        return { ...series, x, y, u: this.units(x, "x"), v: this.units(y, "y"), look: drawings.looks[series.look], shown: true };
      });
      this.whole = { x: this.extent("x"), y: this.extent("y") };
      this.view = this.whole;
      this.addTools();
      this.addLegend();
      holder.addEventListener("pointermove", (event) => this.moved(event));
      holder.addEventListener("pointerdown", (event) => this.pressed(event));
      holder.addEventListener("pointerup", (event) => this.released(event));
      holder.addEventListener("pointercancel", () => this.select(null));
      holder.addEventListener("dblclick", () => this.reset());
    }

    // Values in the units of an axis; NaN where there is nothing to draw.
    units(values, axis) {
      const logarithmic = this.logarithmic[axis];
      return values.map((value) => (value === null || (logarithmic && value <= 0) ? NaN : logarithmic ? Math.log10(value) : value));
    }

    extent(axis) {
      const given = this.chart[`${axis}Range`];
      if (given) return this.units(given, axis);
      const all = this.series.flatMap((series) => (axis === "x" ? series.u : series.v));
      if (axis === "y") all.push(...this.units((this.chart.levels || []).map(([, level]) => level), "y"));
      let low = Infinity, high = -Infinity;
      for (const value of all) {
        if (value < low) low = value;
        if (value > high) high = value;
      }
      if (!Number.isFinite(low)) return [0, 1];
      const room = (high - low) * 0.04 || Math.abs(high) * 0.1 || 1;
      return [low - room, high + room];
    }

    draw() {
      const labels = ticks(this.view.y, this.logarithmic.y, 6);
      this.begin(26 + 6.4 * Math.max(2, ...labels.map(([, text]) => text.length)));
      const { left, right, top, bottom } = this.box, { x, y } = this.view;
      this.toX = (u) => left + ((u - x[0]) / (x[1] - x[0])) * (right - left);
      this.toY = (v) => bottom - ((v - y[0]) / (y[1] - y[0])) * (bottom - top);
      for (const [place, text] of labels) {
        element("line", { class: "gridline", x1: left, x2: right, y1: this.toY(place), y2: this.toY(place) }, this.svg);
        element("text", { x: left - 6, y: this.toY(place) + 4, "text-anchor": "end" }, this.svg, text);
      }
      for (const [place, text] of ticks(x, this.logarithmic.x, Math.max(2, Math.floor((right - left) / 75)))) {
        element("line", { class: "gridline", y1: top, y2: bottom, x1: this.toX(place), x2: this.toX(place) }, this.svg);
        element("text", { x: this.toX(place), y: bottom + 15, "text-anchor": "middle" }, this.svg, text);
      }
      const inside = `inside-${this.holder.dataset.figure}`;
      element("rect", { x: left, y: top, width: right - left, height: bottom - top }, element("clipPath", { id: inside }, this.svg));
      const content = element("g", { "clip-path": `url(#${inside})` }, this.svg);
      for (const [label, level] of this.chart.levels || []) {
        const height = this.toY(this.units([level], "y")[0]);
        element("line", { class: "level", x1: left, x2: right, y1: height, y2: height }, content);
        if (label !== String(level)) element("text", { x: left + 5, y: height - 4 }, content, label);
      }
      this.series.forEach((series, number) => series.shown && this.drawSeries(series, number, content));
      for (const [name, px, py] of this.chart.marks || []) this.drawMark(name, this.toX(px), this.toY(py), content);
      element("rect", { class: "edge", x: left, y: top, width: right - left, height: bottom - top }, this.svg);
      this.over = element("g", {}, this.svg);
      this.active = null;
      this.frame.classList.toggle("enlarged", this.view !== this.whole);
    }

    drawSeries(series, number, parent) {
      series.px = series.u.map(this.toX);
      series.py = series.v.map(this.toY);
      const there = series.px.flatMap((px, place) => (Number.isFinite(px) && Number.isFinite(series.py[place]) ? [place] : []));
      if (this.chart.joined) {
        let path = "", before = -2;
        for (const place of there) {
          path += `${place === before + 1 ? "L" : "M"}${series.px[place].toFixed(1)},${series.py[place].toFixed(1)}`;
          before = place;
        }
        const dash = series.look.dash.map((length) => length * 1.75).join(" ");
        element("path", { class: "curve", style: colours(series.look), "stroke-dasharray": dash || "none", d: path }, parent);
      }
      const every = this.chart.joined ? Math.max(1, Math.floor((there.length - 1) / MARKS)) : 1;
      const shift = Math.floor((number / this.series.length) * every); // so that lines that coincide can be told apart
      const first = Math.min(every - shift, there.length) - 1;
      for (let place = Math.max(0, first); place < there.length; place += every) {
        marker(series.look, series.px[there[place]], series.py[there[place]], parent);
      }
    }

    drawMark(name, x, y, parent) {
      const shape = name === "minimum" ? SHAPES["*"](6) : SHAPES.o(3);
      element("path", { class: name === "minimum" ? "minimum" : "edge", d: shape, transform: `translate(${x},${y})` }, parent);
      element("text", { x: x + 9, y: y - 6 }, parent, name);
    }

    addTools() {
      const tools = html("div", { className: "tools" }, this.frame);
      for (const [text, name, deed] of [["+", "Enlarge", () => this.scale(0.5)], ["−", "Reduce", () => this.scale(2)], ["⤢", "Show all of it", () => this.reset()]]) {
        html("button", { type: "button", textContent: text, title: name, ariaLabel: name, onclick: deed }, tools);
      }
    }

    addLegend() {
      const legend = html("div", { className: "legend" });
      this.frame.after(legend);
      for (const series of this.series) {
        const button = html("button", { type: "button", title: "Hide or show" }, legend);
        button.setAttribute("aria-pressed", "true");
        const sample = element("svg", { width: 30, height: 12, "aria-hidden": "true" }, button);
        if (this.chart.joined) {
          const dash = series.look.dash.map((length) => length * 1.75).join(" ");
          element("path", { class: "curve", style: colours(series.look), "stroke-dasharray": dash || "none", d: "M0,6H30" }, sample);
        }
        marker(series.look, 15, 6, sample);
        html("span", { textContent: series.label }, button);
        button.onclick = () => {
          series.shown = !series.shown;
          button.setAttribute("aria-pressed", String(series.shown));
          this.draw();
        };
      }
    }

    place(event) {
      const bounds = this.svg.getBoundingClientRect();
      const factor = this.width / bounds.width;
      return [(event.clientX - bounds.left) * factor, (event.clientY - bounds.top) * factor];
    }

    moved(event) {
      const [x, y] = this.place(event);
      if (this.from) return this.select([x, y]);
      let nearest = null, least = NEAR ** 2;
      this.series.forEach((series, number) => {
        if (!series.shown) return;
        series.px.forEach((px, place) => {
          const distance = (px - x) ** 2 + (series.py[place] - y) ** 2;
          if (distance < least && this.within(px, series.py[place])) [nearest, least] = [[number, place], distance];
        });
      });
      this.point(nearest);
    }

    within(px, py) {
      const { left, right, top, bottom } = this.box;
      return px >= left - 1 && px <= right + 1 && py >= top - 1 && py <= bottom + 1;
    }

    // Marks a point and says its values, and on lines those of the others at the same place.
    point(active) {
      this.active = active;
      this.over.replaceChildren();
      if (!active) return void (this.tip.hidden = true);
      const [number, place] = active, series = this.series[number];
      const px = series.px[place], py = series.py[place];
      marker(series.look, px, py, this.over, 5);
      const lines = [`${series.label}: ${written(series.y[place])}`, `${this.chart.xLabel}: ${written(series.x[place])}`];
      if (this.chart.kind === "lines" && this.chart.joined) {
        const others = this.series.filter((other) => other !== series && other.shown).slice(0, 8);
        for (const other of others) {
          const same = other.x.indexOf(series.x[place]);
          if (same >= 0) lines.push(`${other.label}: ${written(other.y[same])}`);
        }
      }
      this.say(lines, px, py);
    }

    step(along, across) {
      const shown = this.series.flatMap((series, number) => (series.shown && series.px?.some((px, place) => this.within(px, series.py[place])) ? [number] : []));
      if (!shown.length) return;
      let [number, place] = this.active || [shown[0], -1];
      if (across) number = shown[(shown.indexOf(number) + across + shown.length) % shown.length];
      const series = this.series[number];
      const visible = series.px.flatMap((px, at) => (this.within(px, series.py[at]) ? [at] : []));
      const last = place < 0 ? visible.at(-1) : visible.reduce((best, at) => (Math.abs(at - place) < Math.abs(best - place) ? at : best));
      const next = visible[Math.max(0, Math.min(visible.length - 1, visible.indexOf(last) + along))];
      this.point([number, next]);
    }

    pressed(event) {
      if (event.pointerType === "touch" || event.button) return;
      this.from = this.place(event);
      this.holder.setPointerCapture(event.pointerId);
    }

    select(to) {
      this.over.replaceChildren();
      this.tip.hidden = true;
      if (!to) return void (this.from = null);
      const [[x, width], [y, height]] = [0, 1].map((axis) => [Math.min(this.from[axis], to[axis]), Math.abs(this.from[axis] - to[axis])]);
      element("rect", { class: "selection", x, y, width, height }, this.over);
    }

    released(event) {
      if (!this.from) return;
      const [from, to, { left, right, top, bottom }] = [this.from, this.place(event), this.box];
      this.select(null);
      const span = (axis, low, high, [start, end]) => {
        if (Math.abs(from[axis] - to[axis]) < 12) return [start, end];
        const shares = [from[axis], to[axis]].map((pixel) => Math.min(1, Math.max(0, (pixel - low) / (high - low))));
        return shares.map((share) => start + share * (end - start)).sort((a, b) => a - b);
      };
      if (Math.max(Math.abs(from[0] - to[0]), Math.abs(from[1] - to[1])) < 12) return this.moved(event);
      this.show({ x: span(0, left, right, this.view.x), y: span(1, bottom, top, this.view.y) });
    }

    show(view) {
      const wide = (axis) => view[axis][1] - view[axis][0] > 1e-9 * (this.whole[axis][1] - this.whole[axis][0]);
      if (wide("x") && wide("y")) this.view = view;
      this.draw();
    }

    scale(factor) {
      const active = this.active;
      const series = active && this.series[active[0]];
      const around = (axis, value) => {
        const [low, high] = this.view[axis];
        const centre = Number.isFinite(value) ? value : (low + high) / 2;
        return [centre - (centre - low) * factor, centre + (high - centre) * factor];
      };
      this.show({ x: around("x", series?.u[active[1]]), y: around("y", series?.v[active[1]]) });
      if (active) this.point(active);
    }

    reset() {
      this.view = this.whole;
      this.draw();
      this.point(null);
    }
  }

  class Grid extends Plot {
    draw() {
      const { columns, rows, values, level } = this.chart;
      this.begin(34 + 7 * Math.max(...rows.map((row) => written(row).length)));
      const { left, right, top, bottom } = this.box;
      const wide = (right - left) / columns.length, high = (bottom - top) / rows.length;
      const finite = values.flat().filter((value) => value !== null);
      const low = Math.min(...finite), range = Math.max(...finite) - low || 1;
      this.cells = values.map((row, y) => row.map((value, x) => {
        const at = { x: left + x * wide, y: bottom - (y + 1) * high, width: wide, height: high };
        const share = value === null ? 0 : 1 - (value - low) / range;
        const framed = value !== null && level !== null && value <= level;
        const cell = element("rect", { class: `cell${value === null ? " none" : ""}${framed ? " framed" : ""}`, style: `--share:${(100 * share).toFixed(0)}%`, ...at, x: at.x + 1.5, y: at.y + 1.5, width: wide - 3, height: high - 3 }, this.svg);
        const text = value === null ? "–" : value.toFixed(wide < 44 ? 2 : 3);
        if (wide > 30) element("text", { class: `value${share > 0.55 ? " on-low" : ""}`, x: at.x + wide / 2, y: at.y + high / 2 }, this.svg, text);
        cell.onpointerenter = () => this.point([x, y]);
        return cell;
      }));
      columns.forEach((column, x) => element("text", { x: left + (x + 0.5) * wide, y: bottom + 15, "text-anchor": "middle" }, this.svg, written(column)));
      rows.forEach((row, y) => element("text", { x: left - 6, y: bottom - (y + 0.5) * high + 4, "text-anchor": "end" }, this.svg, written(row)));
    }

    point(active) {
      this.svg.querySelector(".active")?.classList.remove("active");
      this.active = active;
      if (!active) return void (this.tip.hidden = true);
      const [x, y] = active, { columns, rows, values, xLabel, yLabel } = this.chart, cell = this.cells[y][x];
      cell.classList.add("active");
      const centre = (name, size) => Number(cell.getAttribute(name)) + Number(cell.getAttribute(size)) / 2;
      const value = values[y][x] === null ? "diverged, or not run" : written(values[y][x]);
      this.say([value, `${xLabel}: ${written(columns[x])}`, `${yLabel}: ${written(rows[y])}`], centre("x", "width"), centre("y", "height"));
    }

    step(along, across) {
      const [x, y] = this.active || [0, 0], { columns, rows } = this.chart;
      const limited = (place, count) => Math.max(0, Math.min(count - 1, place));
      this.point([limited(x + along, columns.length), limited(y - across, rows.length)]);
    }

    reset() {
      this.point(null);
    }
  }

  for (const holder of document.querySelectorAll(".plot")) {
    const chart = drawings.charts[Number(holder.dataset.figure)];
    chart.kind === "grid" ? new Grid(holder, chart) : new Lines(holder, chart);
  }
})();
