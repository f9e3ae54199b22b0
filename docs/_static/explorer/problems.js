"use strict";
// The two functions of the recipes toy-rosenbrock and toy-two-emas. `window` is what the figure shows.
(function () {
  const toys = ademamix.data.toys;

  ademamix.problems = {
    rosenbrock: {
      ...toys.rosenbrock,
      momenta: { none: [0, 0] },
      window: { x: [-3.6, 2.4], y: [-1.5, 9.5] },
      levels: [1, 5, 20, 80, 250, 700, 1600],
      value: (x, y) => (1 - x) ** 2 + 100 * (y - x * x) ** 2,
      gradient: (x, y) => [-2 * (1 - x) - 400 * x * (y - x * x), 200 * (y - x * x)],
    },
    steepAndFlat: {
      ...toys.steepAndFlat,
      window: { x: [-2.5, 4.2], y: [-3.5, 12] },
      levels: [2, 8, 20, 45, 100, 250, 700],
      value: (x, y) => 8 * (x - 1) ** 2 * (1.3 * x * x + 2 * x + 1) + 0.5 * (y - 4) ** 2,
      gradient: (x, y) => [8 * x * (x - 1) * (5.2 * x + 3.4), y - 4],
    },
  };
})();
