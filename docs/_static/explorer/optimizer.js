"use strict";
// The arithmetic of AdEMAMix, line by line that of src/ademamix/reference.py; tests compare their trajectories.
// A classic script, like all of this folder: browsers load no modules from disk. data.js is the first of them.

(function () {
  /** The weight of the slow average at step t = 1, 2, ...; T = 0 means no warm-up. */
  function alphaAt(t, alpha, T) {
    return t < T ? (t * alpha) / T : alpha;
  }

  /** The decay of the slow average at step t: its half-life grows linearly from that of `start` to that of `beta3`. */
  function beta3At(t, beta3, start, T) {
    if (T === 0 || t >= T || start >= beta3) return beta3;
    const mu = t / T;
    const inverse = (1 - mu) / Math.log(start) + mu / Math.log(beta3); // 1/ln 0 is -0, so start = 0 needs no case
    return Math.min(Math.exp(1 / inverse), beta3);
  }

  /** The number of past gradients that have half of the weight of an average. */
  function halfLife(beta) {
    return Math.log(0.5) / Math.log(beta) - 1;
  }

  /**
   * Minimise a function of two variables, and return all points that are passed, the start first.
   *
   * Both averages begin at `momentum`. alpha = 0 makes it Adam.
   */
  function descend(problem, { lr, beta1, beta3 = 0, alpha = 0, T = 0, momentum = [0, 0] }, steps) {
    const beta2 = 0.999;
    const eps = 1e-8;
    const theta = [...problem.start];
    const m1 = [...momentum];
    const m2 = [...momentum];
    const nu = [0, 0];
    const points = [[...theta]];
    for (let t = 1; t <= steps; t++) {
      const gradient = problem.gradient(...theta);
      const slow = beta3At(t, beta3, beta1, T);
      const weight = alphaAt(t, alpha, T);
      for (const i of [0, 1]) {
        const g = gradient[i];
        m1[i] = beta1 * m1[i] + (1 - beta1) * g;
        m2[i] = slow * m2[i] + (1 - slow) * g;
        nu[i] = beta2 * nu[i] + (1 - beta2) * g * g;
        const fast = m1[i] / (1 - beta1 ** t);
        theta[i] -= (lr * (fast + weight * m2[i])) / (Math.sqrt(nu[i] / (1 - beta2 ** t)) + eps);
      }
      points.push([...theta]);
    }
    return points;
  }

  /** The weights of the gradients of steps t, t - 1, ..., 1 in the update of step t: of m1, and of alpha m2. */
  function weightsAt(t, { beta1, beta3 = 0, alpha = 0, T = 0 }) {
    const fast = [];
    const slow = [];
    const correction = 1 - beta1 ** t;
    let kept = alphaAt(t, alpha, T);
    for (let step = t; step >= 1; step--) {
      const decay = beta3At(step, beta3, beta1, T);
      fast.push(((1 - beta1) * beta1 ** (t - step)) / correction);
      slow.push(kept * (1 - decay));
      kept *= decay;
    }
    return { fast, slow };
  }

  Object.assign(ademamix, { alphaAt, beta3At, halfLife, descend, weightsAt });
})();
