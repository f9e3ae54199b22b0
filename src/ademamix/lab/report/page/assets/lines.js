// Curves, points and paths: with values where the pointer is, and enlarged where it is dragged.
const NEAR = 120; // pixels from the pointer within which a point is found
const MARKS = 10; // on a line, about

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
    const [from, to] = given ? this.units(given, axis) : [NaN, NaN];
    if (to > from) return [from, to];
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
    if (this.chart.marks) return void (series.marked && marker(series.look, this.toX(series.marked[0]), this.toY(series.marked[1]), parent, 4.5));
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
    if (!this.svg) return;
    this.active = active;
    this.over.replaceChildren();
    if (!active) return void (this.tip.hidden = true);
    const [number, place] = active, series = this.series[number];
    const px = series.px[place], py = series.py[place];
    marker(series.look, px, py, this.over, 5);
    const lines = [`${written(series.y[place])} · ${series.label}`, `${this.chart.xLabel}: ${written(series.x[place])}`];
    if (this.chart.kind === "lines" && this.chart.joined) {
      const others = this.series.filter((other) => other !== series && other.shown).slice(0, 8);
      for (const other of others) {
        const same = other.x.indexOf(series.x[place]);
        if (same >= 0) lines.push(`${written(other.y[same])} · ${other.label}`);
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
