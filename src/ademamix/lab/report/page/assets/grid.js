// A value for each pair of two settings, as coloured cells.
class Grid extends Plot {
  draw() {
    const { columns, rows, values, level } = this.chart;
    this.begin(34 + 7 * Math.max(...rows.map((row) => written(row).length)));
    const { left, right, top, bottom } = this.box;
    const wide = (right - left) / columns.length, high = (bottom - top) / rows.length;
    const finite = values.flat().filter((value) => value !== null);
    const low = Math.min(...finite), range = Math.max(...finite) - low || 1;
    this.cells = values.map((row, y) => row.map((value, x) => {
      const corner = { x: left + x * wide + 1.5, y: bottom - (y + 1) * high + 1.5 };
      const share = value === null ? 0 : 1 - (value - low) / range;
      const look = value === null ? "none" : level !== null && value <= level ? "framed" : "";
      const cell = element("rect", { class: `cell ${look}`, style: `--share:${(100 * share).toFixed(0)}%`, ...corner, width: wide - 3, height: high - 3 }, this.svg);
      const text = value === null ? "–" : value.toFixed(wide < 44 ? 2 : 3);
      const middle = { x: left + (x + 0.5) * wide, y: bottom - (y + 0.5) * high };
      if (wide > 30) element("text", { class: `value ${share > 0.55 ? "on-low" : ""}`, ...middle }, this.svg, text);
      cell.onpointerenter = () => this.point([x, y]);
      return cell;
    }));
    columns.forEach((column, x) => element("text", { x: left + (x + 0.5) * wide, y: bottom + 15, "text-anchor": "middle" }, this.svg, written(column)));
    rows.forEach((row, y) => element("text", { x: left - 6, y: bottom - (y + 0.5) * high + 4, "text-anchor": "end" }, this.svg, written(row)));
  }

  point(active) {
    this.svg?.querySelector(".active")?.classList.remove("active");
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
