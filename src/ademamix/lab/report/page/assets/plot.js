// A place for a chart: its size, its axes, and the values shown beside the pointer.
class Plot {
  constructor(holder, chart) {
    this.holder = holder;
    this.chart = chart;
    this.frame = holder.parentElement;
    this.tip = this.frame.querySelector(".tip");
    holder.addEventListener("keydown", (event) => this.key(event));
    holder.addEventListener("focus", () => this.ready() && holder.matches(":focus-visible") && this.step(0, 0));
    holder.addEventListener("blur", () => this.point(null));
    holder.addEventListener("pointerleave", () => this.point(null));
    window.addEventListener("beforeprint", () => this.ready());
    const size = new ResizeObserver(() => holder.clientWidth && holder.clientWidth !== this.width && this.draw());
    const sight = new IntersectionObserver(([{ isIntersecting }]) => {
      if (!isIntersecting) return;
      sight.disconnect();
      size.observe(holder);
    }, { rootMargin: "100%" }); // a figure is drawn a screen before it is seen
    sight.observe(holder);
  }

  ready() {
    if (!this.svg) this.draw();
    return true;
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

  // What only some charts do.
  scale() {}
  reset() {}
}
