"use strict";
// Figures in SVG: axes, curves, contour lines. Sizes are in pixels, colours are in explorer.css.
(function () {
  const MARGIN = { left: 46, right: 20, top: 10, bottom: 38 };

  function element(name, attributes, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  /** A scale from values to pixels, with the values to mark. A logarithmic one marks powers of ten. */
  function scale([from, to], [start, end], logarithmic = false) {
    const place = logarithmic ? Math.log10 : (x) => x;
    const [low, high] = [place(from), place(to)];
    const map = (x) => start + ((place(x) - low) / (high - low)) * (end - start);
    return { map, ticks: logarithmic ? powersOfTen(low, high) : roundValues(from, to, Math.abs(end - start)) };
  }

  function powersOfTen(low, high) {
    const every = Math.ceil((high - low) / 5);
    const ticks = [];
    for (let power = Math.ceil(low); power <= high; power += every) ticks.push(10 ** power);
    return ticks;
  }

  function roundValues(from, to, pixels) {
    const rough = ((to - from) * 65) / pixels; // labels need so much room
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
    const ticks = [];
    for (let tick = Math.ceil(from / step); tick * step <= to; tick++) ticks.push(tick * step);
    return ticks;
  }

  function label(x) {
    if (x !== 0 && Math.abs(x) < 0.001) return `1e${Math.round(Math.log10(x))}`;
    return Number(x.toPrecision(6)).toLocaleString("en-US", { maximumSignificantDigits: 6 });
  }

  /** Empty a figure, draw its axes, and return what draws into it. */
  function axes(figure, { x, y, xLabel, yLabel, logarithmic = "" }) {
    const { clientWidth: width, clientHeight: height } = figure;
    const inner = { left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom };
    const across = scale(x, [inner.left, inner.right], logarithmic.includes("x"));
    const up = scale(y, [inner.bottom, inner.top], logarithmic.includes("y"));
    figure.replaceChildren();
    figure.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const add = (name, attributes, text) => figure.appendChild(element(name, attributes, text));
    const clip = add("clipPath", { id: `${figure.id}-inside` });
    const area = { x: inner.left, y: inner.top, width: inner.right - inner.left, height: inner.bottom - inner.top };
    clip.appendChild(element("rect", area));
    for (const tick of across.ticks) {
      const at = across.map(tick);
      add("line", { class: "grid", x1: at, x2: at, y1: inner.top, y2: inner.bottom });
      add("text", { x: at, y: inner.bottom + 15, "text-anchor": "middle" }, label(tick));
    }
    for (const tick of up.ticks) {
      const at = up.map(tick);
      add("line", { class: "grid", x1: inner.left, x2: inner.right, y1: at, y2: at });
      add("text", { x: inner.left - 6, y: at + 4, "text-anchor": "end" }, label(tick));
    }
    add("text", { x: (inner.left + inner.right) / 2, y: height - 6, "text-anchor": "middle" }, xLabel);
    const middle = (inner.top + inner.bottom) / 2;
    add("text", { transform: `translate(11 ${middle}) rotate(-90)`, "text-anchor": "middle" }, yLabel);
    const inside = add("g", { "clip-path": `url(#${figure.id}-inside)` });
    const at = (px, py) => `${across.map(px).toFixed(1)} ${up.map(py).toFixed(1)}`;
    return {
      curve(points, kind) {
        const finite = points.filter(([, py]) => Number.isFinite(py) && (!logarithmic.includes("y") || py > 0));
        const d = finite.map(([px, py], number) => `${number ? "L" : "M"}${at(px, py)}`).join("");
        inside.appendChild(element("path", { class: `curve ${kind}`, d }));
      },
      segments(pairs, kind) {
        const d = pairs.map(([a, b]) => `M${at(...a)}L${at(...b)}`).join("");
        inside.appendChild(element("path", { class: kind, d }));
      },
      dot([px, py], kind, r = 5) {
        if (Number.isFinite(px + py)) {
          inside.appendChild(element("circle", { class: kind, cx: across.map(px), cy: up.map(py), r }));
        }
      },
      note([px, py], text) {
        inside.appendChild(element("text", { x: across.map(px) + 8, y: up.map(py) + 4 }, text));
      },
    };
  }

  const CELLS = 90;

  /** The line on which a function has the value `level`, as segments: marching squares. */
  function contour({ value, window }, level) {
    const place = ([from, to], i) => from + ((to - from) * i) / CELLS;
    const corner = (i, j) => {
      const point = [place(window.x, i), place(window.y, j)];
      return { point, above: value(...point) - level };
    };
    const segments = [];
    for (let i = 0; i < CELLS; i++) {
      for (let j = 0; j < CELLS; j++) {
        const corners = [corner(i, j), corner(i + 1, j), corner(i + 1, j + 1), corner(i, j + 1)];
        const crossings = [];
        for (let side = 0; side < 4; side++) {
          const [a, b] = [corners[side], corners[(side + 1) % 4]];
          if (a.above > 0 !== b.above > 0) {
            const part = a.above / (a.above - b.above);
            crossings.push([0, 1].map((axis) => a.point[axis] + part * (b.point[axis] - a.point[axis])));
          }
        }
        for (let pair = 0; pair + 1 < crossings.length; pair += 2) segments.push(crossings.slice(pair, pair + 2));
      }
    }
    return segments;
  }

  Object.assign(ademamix, { axes, contour });
})();
