"use strict";
// The form of the settings calculator.
(function () {
  const find = (id) => document.getElementById(id);

  /** Read an optional number of AdamW: null if the field is empty, NaN if it makes no sense. */
  function optional(id, least) {
    const text = find(id).value.trim();
    if (text === "") return null;
    const number = Number(text);
    return number >= least && number < Infinity ? number : NaN;
  }

  function input() {
    const parameters = find("parameters").value.trim();
    return {
      steps: find("open-end").checked ? "open" : ademamix.count(find("steps").value),
      parameters: parameters === "" ? null : ademamix.count(parameters),
      lr: optional("adamw-lr", Number.MIN_VALUE),
      weightDecay: optional("adamw-decay", 0),
    };
  }

  const MISTAKES = {
    steps: "Steps must be a whole number of at least 1, such as 10000 or 256k.",
    parameters: "Parameters must be a whole number of at least 1, such as 110M or 8B, or empty.",
    lr: "AdamW's learning rate must be a number above 0, such as 1e-3, or empty.",
    weightDecay: "AdamW's weight decay must be a number of at least 0, such as 0.1, or empty.",
  };
  const FIELDS = { steps: "steps", parameters: "parameters", lr: "adamw-lr", weightDecay: "adamw-decay" };

  function row({ setting, value, why, source }) {
    const made = document.createElement("tr");
    const head = document.createElement("th");
    head.scope = "row";
    head.textContent = setting;
    made.append(head);
    for (const text of [value, `${why} (${source})`]) made.insertCell().textContent = text;
    return made;
  }

  function show() {
    const { lr, weightDecay, ...run } = input();
    const wrong = Object.keys(MISTAKES).filter((name) => Number.isNaN({ lr, weightDecay, ...run }[name]));
    for (const [name, id] of Object.entries(FIELDS)) find(id).setAttribute("aria-invalid", wrong.includes(name));
    const open = find("open-end").checked;
    find("steps").disabled = open;
    for (const choice of find("schedule").options) {
      choice.disabled = open && ademamix.data.settings.decaying.includes(choice.value);
    }
    if (find("schedule").selectedOptions[0].disabled) find("schedule").value = ademamix.data.settings.schedules.open;
    find("mistake").textContent = wrong.map((name) => MISTAKES[name]).join(" ");
    find("recommended").hidden = wrong.length > 0;
    if (wrong.length) return;
    const plan = ademamix.recommend(run.steps, {
      parameters: run.parameters,
      phase: find("phase").value,
      schedule: find("schedule").value,
    });
    find("too-short").hidden = plan.pays;
    find("reasons").replaceChildren(...plan.reasons.map(row));
    for (const [name, call] of Object.entries(ademamix.calls(plan, { lr, weightDecay }))) {
      document.querySelector(`[data-call="${name}"]`).textContent = call;
    }
  }

  const shortest = ademamix.data.settings.shortestRun.toLocaleString("en-US");
  find("too-short").textContent = `Stay with AdamW: we have not tried AdEMAMix in runs of fewer than ${shortest} steps. If you try it anyway:`;
  find("calculator").addEventListener("input", show);
  find("calculator").addEventListener("submit", (event) => event.preventDefault());
  show();
})();
