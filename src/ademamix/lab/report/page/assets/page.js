// The filter of the claims, and a page that loads itself again while runs continue.
const form = document.getElementById("filter");
if (form) {
  const rows = [...document.querySelectorAll("table.claims tbody tr")];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const apply = () => {
    const words = form.text.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    rows.forEach((row, number) => {
      const fits =
        (!form.verdict.value || row.dataset.verdict === form.verdict.value) &&
        (!form.recipe.value || row.dataset.recipe === form.recipe.value) &&
        words.every((word) => texts[number].includes(word));
      row.hidden = !fits;
      count += fits;
    });
    document.getElementById("none-shown").hidden = count > 0;
    const all = `${rows.length} claim${rows.length === 1 ? "" : "s"}`;
    document.getElementById("shown").textContent = count === rows.length ? all : `${count} of ${all}`;
  };
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(apply));
  for (const tile of document.querySelectorAll("[data-show]")) {
    tile.addEventListener("click", () => {
      form.reset();
      form.verdict.value = tile.dataset.show;
      setTimeout(apply);
    });
  }
  apply(); // a browser may have kept the fields from before
  window.addEventListener("pageshow", apply);
}

const reloading = document.getElementById("reloading");
const seconds = Number(reloading.dataset.seconds);
if (seconds) {
  // What was unfolded and filtered stays so; the browser itself keeps the place.
  reloading.hidden = false;
  const parts = () => [...document.querySelectorAll("details")];
  try {
    const kept = JSON.parse(sessionStorage.getItem("ademamix-report") || "{}");
    (kept.open || []).forEach((number) => parts()[number] && (parts()[number].open = true));
    if (form && kept.filter) {
      for (const [name, value] of Object.entries(kept.filter)) form[name].value = value;
      form.dispatchEvent(new Event("input"));
    }
  } catch {
    // a browser without storage for files starts afresh
  }
  let busy = 0;
  for (const kind of ["pointermove", "keydown", "wheel", "touchstart"]) {
    window.addEventListener(kind, () => (busy = Date.now()), { passive: true });
  }
  setInterval(() => {
    if (document.hidden || Date.now() - busy < 3000) return;
    const open = parts().flatMap((part, number) => (part.open ? [number] : []));
    const filter = form ? Object.fromEntries(new FormData(form)) : null;
    try {
      sessionStorage.setItem("ademamix-report", JSON.stringify({ open, filter }));
    } catch {
      // as above
    }
    location.reload();
  }, 1000 * seconds);
}
