"use strict";
// The figures of the explorer and its sliders.
(function () {
  const STEPS = 3000;
  const BETAS = [0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9998, 0.9999];
  const RATES = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5];
  const ORDINARY = { "mix-beta1": 0.9, "mix-T": 0, step: STEPS };
  const PRESETS = {
    rosenbrock: { problem: "rosenbrock", "mix-beta3": 0.99, "mix-alpha": 9, "mix-lr": 0.05, "adam-beta1": 0.9, "adam-lr": 0.2 },
    inertia: { problem: "rosenbrock", "mix-beta3": 0.99, "mix-alpha": 9, "mix-lr": 0.05, "adam-beta1": 0.999, "adam-lr": 0.2 },
    astray: { problem: "steepAndFlat", momentum: "a", "mix-beta3": 0.999, "mix-alpha": 5, "mix-lr": 0.01, "adam-beta1": 0.999, "adam-lr": 0.01 },
    tooLong: { problem: "rosenbrock", "mix-beta3": 0.9999, "mix-alpha": 20, "mix-lr": 0.05, "adam-beta1": 0.9, "adam-lr": 0.2 },
    warmedUp: { problem: "rosenbrock", "mix-beta3": 0.99, "mix-alpha": 9, "mix-lr": 0.05, "mix-T": STEPS, "adam-beta1": 0.9, "adam-lr": 0.2 },
  };
  const VALUES = { "mix-beta1": BETAS.slice(0, 10), "mix-beta3": BETAS, "adam-beta1": BETAS, "mix-lr": RATES, "adam-lr": RATES };

  const find = (id) => document.getElementById(id);
  const plural = (steps) => `${steps.toLocaleString("en-US")} ${steps === 1 ? "step" : "steps"}`;
  const short = (x) => (Number.isFinite(x) ? ademamix.general(x, 2) : "infinitely far");

  /** The value that a slider stands for: those of betas and rates are positions in a list. */
  function read(id) {
    const number = Number(find(id).value);
    return id in VALUES ? VALUES[id][number] : number;
  }

  function write(id, value) {
    find(id).value = id in VALUES ? VALUES[id].indexOf(value) : value;
  }

  function described(id, value) {
    if (id.includes("beta")) {
      return value === 0 ? "0, the newest gradient alone" : `${value}, half-life ${ademamix.halfLife(value).toFixed(0)}`;
    }
    if (id === "mix-T") return value === 0 ? "0, no warm-up" : plural(value);
    return id === "step" ? plural(value) : String(value);
  }

  let contours = {};

  function draw() {
    if (find("landscape").clientWidth === 0) return; // not laid out yet; the observer will call again
    const problem = ademamix.problems[find("problem").value];
    const momentum = problem.momenta[find("momentum").value] ?? [0, 0];
    const t = read("step");
    const mix = { lr: read("mix-lr"), beta1: read("mix-beta1"), beta3: read("mix-beta3"), alpha: read("mix-alpha"), T: read("mix-T"), momentum };
    const adam = { lr: read("adam-lr"), beta1: read("adam-beta1"), momentum };
    const paths = { mix: ademamix.descend(problem, mix, STEPS), adam: ademamix.descend(problem, adam, STEPS) };
    const distances = Object.fromEntries(
      Object.entries(paths).map(([name, points]) => [name, points.map(([x, y]) => Math.hypot(x - problem.minimum[0], y - problem.minimum[1]))]),
    );
    for (const slider of document.querySelectorAll("#descents input[type=range]")) {
      const text = described(slider.id, read(slider.id));
      find(`${slider.id}-value`).textContent = text;
      slider.setAttribute("aria-valuetext", text);
    }
    drawLandscape(problem, paths, t);
    drawWeights(mix, adam, t);
    drawDistances(distances, t);
    find("outcome").textContent =
      `After ${plural(t)}, AdEMAMix is ${short(distances.mix[t])} from the minimum, and Adam ${short(distances.adam[t])}.`;
  }

  function drawLandscape(problem, paths, t) {
    const figure = find("landscape");
    const plot = ademamix.axes(figure, { ...problem.window, xLabel: "first variable", yLabel: "second variable" });
    const name = find("problem").value;
    contours[name] ??= problem.levels.map((level) => ademamix.contour(problem, level));
    for (const segments of contours[name]) plot.segments(segments, "contour");
    for (const kind of ["adam", "mix"]) {
      plot.curve(paths[kind].slice(0, t + 1), kind);
      plot.dot(paths[kind][t], kind);
    }
    plot.dot(problem.start, "mark", 3);
    plot.note(problem.start, "start");
    plot.dot(problem.minimum, "mark", 3);
    plot.note(problem.minimum, "minimum");
    const place = (kind) => paths[kind][t].map(short).join(", ");
    figure.setAttribute("aria-label", `The paths on a map of the function. After ${plural(t)}, AdEMAMix is at ${place("mix")} and Adam at ${place("adam")}.`);
  }

  function drawWeights(mix, adam, t) {
    const figure = find("weights");
    const { fast, slow } = ademamix.weightsAt(t, mix);
    const single = ademamix.weightsAt(t, adam).fast;
    const plot = ademamix.axes(figure, { x: [0, Math.max(t, 2)], y: [1e-6, 2], xLabel: "steps ago", yLabel: "weight", logarithmic: "y" });
    plot.curve(single.map((weight, age) => [age, weight]), "adam");
    plot.curve(fast.map((weight, age) => [age, weight + slow[age]]), "mix");
    const old = (weights) => {
      const sum = (part) => part.reduce((total, weight) => total + weight, 0);
      return `${((100 * sum(weights.slice(100))) / sum(weights)).toFixed(1)}%`;
    };
    const text = `Gradients older than 100 steps have ${old(fast.map((w, i) => w + slow[i]))} of the weight in AdEMAMix and ${old(single)} in Adam.`;
    find("old-share").textContent = text;
    figure.setAttribute("aria-label", `The weight of each past gradient. ${text}`);
  }

  function drawDistances(distances, t) {
    const figure = find("distances");
    const plot = ademamix.axes(figure, { x: [0, STEPS], y: [1e-6, 20], xLabel: "step", yLabel: "distance", logarithmic: "y" });
    for (const kind of ["adam", "mix"]) {
      plot.curve(distances[kind].map((distance, step) => [step, Math.max(distance, 1e-9)]), kind);
      plot.dot([t, Math.max(distances[kind][t], 1e-6)], kind, 4);
    }
    figure.setAttribute("aria-label", `The distance to the minimum by step, on a logarithmic scale; after ${plural(t)}, ${short(distances.mix[t])} for AdEMAMix and ${short(distances.adam[t])} for Adam.`);
  }

  function choose(preset) {
    for (const [id, value] of Object.entries({ momentum: "a", ...ORDINARY, ...PRESETS[preset] })) write(id, value);
    offerMomenta();
    draw();
  }

  function offerMomenta() {
    find("momentum-choice").hidden = find("problem").value !== "steepAndFlat";
  }

  let playing = null;

  function stop() {
    cancelAnimationFrame(playing);
    playing = null;
    find("play").textContent = "Play";
  }

  /** Let the step advance to the end; at once, where people have asked for less motion. */
  function play() {
    if (playing !== null) return stop();
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
      write("step", STEPS);
      return draw();
    }
    if (read("step") === STEPS) write("step", 0);
    find("play").textContent = "Pause";
    const advance = () => {
      write("step", Math.min(read("step") + 20, STEPS));
      draw();
      if (read("step") === STEPS) stop();
      else playing = requestAnimationFrame(advance);
    };
    playing = requestAnimationFrame(advance);
  }

  function start() {
    for (const [id, values] of Object.entries(VALUES)) Object.assign(find(id), { min: 0, max: values.length - 1, step: 1 });
    find("descents").addEventListener("input", (event) => {
      if (playing !== null) stop();
      if (event.target.id === "problem") {
        return choose(event.target.value === "rosenbrock" ? "rosenbrock" : "astray");
      }
      draw();
    });
    for (const button of document.querySelectorAll("#descents [data-preset]")) {
      button.addEventListener("click", () => choose(button.dataset.preset));
    }
    find("play").addEventListener("click", play);
    new ResizeObserver(draw).observe(find("landscape"));
    choose("rosenbrock");
  }

  start();
})();
