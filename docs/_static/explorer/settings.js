"use strict";
// The settings calculator: the numbers and sentences of ademamix.recommend and of `ademamix plan`.
// data.js is made by docs/extensions/site_files.py and has what Python decides; only what depends on T is computed here.
(function () {
  const data = ademamix.data.settings;

  /** Round to a whole number as Python does, halves to the even neighbour. */
  function rounded(x) {
    const below = Math.floor(x);
    if (x - below !== 0.5) return Math.round(x);
    return below % 2 ? below + 1 : below;
  }

  /** A number as Python's format "g" writes it, with so many digits. */
  function general(x, digits = 6) {
    const [mantissa, exponent] = x.toExponential(digits - 1).split("e");
    if (exponent >= -4 && exponent < digits) return String(Number(x.toPrecision(digits)));
    const power = String(Math.abs(exponent)).padStart(2, "0");
    return `${Number(mantissa)}e${exponent < 0 ? "-" : "+"}${power}`;
  }

  const grouped = (x) => rounded(x).toLocaleString("en-US");

  function beta3For(steps) {
    if (steps === "open") return data.paperBeta3;
    return Math.max(data.betas[0], Math.min(1 - 1 / (data.horizonFraction * steps), data.paperBeta3));
  }

  function whyBeta3(beta3, steps, phase) {
    const row = { setting: "beta3", value: general(beta3), why: `it remembers ${grouped(1 / (1 - beta3))} steps` };
    if (beta3 === data.paperBeta3) {
      return { ...row, why: `${row.why}, as in all long runs of the paper`, source: data.sources.paperBeta3 };
    }
    if (beta3 === data.betas[0]) {
      const why = `${row.why}, no more than m1: too short a run, or too large a beta1, for a slow average`;
      return { ...row, why, source: data.sources.shortest };
    }
    const share = `${rounded(data.horizonFraction * 100)}% of the run`;
    const why = `${row.why}, ${share}, half-life ${grouped(ademamix.halfLife(beta3))} steps; ${data.otherShares}`;
    if (phase === "pretrain" && steps >= data.lengths[0]) {
      return { ...row, why: `${why}; ${data.notAsEpfl}`, source: data.sources.longRule };
    }
    return { ...row, why, source: data.sources.rule };
  }

  function whyWarmup(warmup, steps) {
    const row = { setting: "warm-ups", value: `${grouped(warmup)} step${warmup === 1 ? "" : "s"}` };
    return { ...row, ...(warmup === steps ? data.warmupSpansTheRun : data.warmupIsShorter) };
  }

  /** How many of some limits a number has reached. */
  const reached = (number, limits) => limits.filter((limit) => number >= limit).length;

  /** The settings for a run of so many steps, or "open"; `parameters` may be null. See ademamix.recommend. */
  function recommend(steps, { parameters = null, phase = "pretrain", schedule = data.schedules[steps === "open" ? "open" : "planned"] } = {}) {
    const length = steps === "open" ? "open" : reached(steps, data.lengths);
    const size = parameters === null ? "unknown" : reached(parameters, data.sizes);
    const chosen = data.choices[[phase, schedule, length, size].join(" ")];
    const beta3 = beta3For(steps);
    const longest = rounded(data.openWarmup / (1 - beta3));
    let warmup = steps;
    if (steps === "open") warmup = longest;
    else if (!data.decaying.includes(schedule)) warmup = Math.min(steps, longest);
    const [whyAlpha, ...others] = chosen.reasons;
    return {
      steps,
      schedule,
      betas: [...data.betas, beta3],
      alpha: chosen.alpha,
      warmup,
      lrFactor: chosen.lr_factor,
      clip: chosen.clip,
      pays: steps === "open" || steps >= data.shortestRun,
      reasons: [whyBeta3(beta3, steps, phase), whyAlpha, whyWarmup(warmup, steps), ...others],
    };
  }

  /** What to write in each framework; settings of a tuned AdamW that are not known are null. */
  function calls(plan, { lr = null, weightDecay = null } = {}) {
    const rate = lr === null ? `${general(plan.lrFactor)} * adamw_lr` : general(Number(general(plan.lrFactor * lr, 3)));
    const decay = weightDecay === null ? "adamw_weight_decay" : general(weightDecay);
    const clip = plan.clip === null ? "adamw_clip" : general(plan.clip);
    const own = plan.warmup === plan.steps || plan.steps === "open" ? "" : `alpha_warmup=${plan.warmup}, beta3_warmup=${plan.warmup}`;
    const settings = (...others) => [`alpha=${general(plan.alpha)}`, ...others, own].filter(Boolean).join(", ");
    const open = plan.steps === "open";
    const stated = settings(open ? "total_steps='open'" : `total_steps=${plan.steps}`);
    const trainer = data.trainerSchedules[open ? "constant" : plan.schedule];
    return {
      PyTorch: `AdEMAMix(model.parameters(), lr=${rate}, ${stated}, weight_decay=${decay})`,
      Optax: `ademamix(${rate}, ${stated}, weight_decay=${decay})`,
      "Hugging Face":
        `TrainingArguments(learning_rate=${rate}, ${open ? "" : `max_steps=${plan.steps}, `}${trainer}, ` +
        `weight_decay=${decay}, max_grad_norm=${clip}, ` +
        `optim_args="${open ? settings("total_steps=open") : settings()}"), with use_ademamix(trainer)`,
    };
  }

  /** Read a count such as 256k, 1.5M, 8B, 10,000 or 1e4; NaN if it is none. */
  function count(text) {
    const found = /^((?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d*)?|\.\d+)(e\d{1,2}|[kmbt]?)$/i.exec(text.trim());
    if (!found) return NaN;
    const exponent = { "": "", k: "e3", m: "e6", b: "e9", t: "e12" }[found[2].toLowerCase()] ?? found[2];
    const number = Number(found[1].replaceAll(",", "") + exponent);
    return Number.isInteger(number) && number >= 1 && number <= Number.MAX_SAFE_INTEGER ? number : NaN;
  }

  Object.assign(ademamix, { recommend, calls, count, general });
})();
