// Numbers, the ticks of axes, and the shapes of markers.
const drawings = JSON.parse(document.getElementById("drawings").textContent);

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
  if (size && (size < 1e-3 || size >= 1e7)) {
    return value.toExponential(Math.max(0, digits - 1)).replace(/\.?0+e/, "e").replace("e+", "e");
  }
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  const short = Number(value.toPrecision(Math.max(digits, Math.ceil(Math.log10(size + 1)))));
  return short.toLocaleString("en-US", { maximumFractionDigits: 7 });
};

// Round places between two ends, each with its text.
const ticks = ([low, high], logarithmic, count) => {
  if (!logarithmic) return linearTicks(low, high, count);
  const every = Math.max(1, Math.ceil((high - low) / count));
  const places = [];
  for (let power = Math.floor(low); power <= Math.ceil(high); power += every) {
    for (const factor of high - low < 2.5 ? [1, 2, 5] : [1]) places.push(power + Math.log10(factor));
  }
  const inside = places.filter((place) => place >= low && place <= high);
  if (inside.length > 2) return inside.map((place) => [place, written(10 ** place, 3)]);
  return linearTicks(10 ** low, 10 ** high, count).flatMap(([value, text]) => (value > 0 ? [[Math.log10(value), text]] : []));
};

const linearTicks = (low, high, count) => {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  const digits = Math.max(1, Math.ceil(Math.log10(Math.max(Math.abs(low), Math.abs(high)) / step)) + 1);
  const first = Math.ceil(low / step - 1e-9);
  const values = [...Array(3 * count).keys()].map((number) => Number(((first + number) * step).toPrecision(12)));
  return values.filter((value) => value <= high + 1e-9 * step).map((value) => [value, written(value, digits)]);
};

const SHAPES = {
  o: (r) => `M${-r},0a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0Z`,
  s: (r) => `M${-r},${-r}H${r}V${r}H${-r}Z`,
  "^": (r) => `M0,${-r * 1.2}L${r * 1.1},${r * 0.9}H${-r * 1.1}Z`,
  v: (r) => `M0,${r * 1.2}L${r * 1.1},${-r * 0.9}H${-r * 1.1}Z`,
  "<": (r) => `M${-r * 1.2},0L${r * 0.9},${-r * 1.1}V${r * 1.1}Z`,
  D: (r) => `M0,${-r * 1.25}L${r * 1.25},0L0,${r * 1.25}L${-r * 1.25},0Z`,
  P: (r) => `M${-r * 1.2},0H${r * 1.2}M0,${-r * 1.2}V${r * 1.2}`,
  X: (r) => `M${-r},${-r}L${r},${r}M${-r},${r}L${r},${-r}`,
  "*": (r) => {
    const corners = [...Array(10).keys()].map((number) => {
      const [angle, length] = [(number * Math.PI) / 5, r * (number % 2 ? 0.55 : 1.4)];
      return `${(Math.sin(angle) * length).toFixed(2)},${(-Math.cos(angle) * length).toFixed(2)}`;
    });
    return `M${corners.join("L")}Z`;
  },
};
const colours = (look) => `--light:${look.colour};--dark:${look.inDark}`;
const marker = (look, x, y, parent, size = 3.2) =>
  element("path", {
    class: `curve ${look.hollow ? "hollow" : "filled"}`, style: colours(look),
    d: (SHAPES[look.marker] || SHAPES.o)(size), transform: `translate(${x.toFixed(1)},${y.toFixed(1)})`,
  }, parent);
