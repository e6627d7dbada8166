// Unpacks a page that is packed, and shows one step at a time. Without it a plain page shows all steps below each other.
(async () => {
  const packed = document.getElementById("packed");
  if (packed) {
    // The packed part goes on where the sample ends, which all pages share.
    const parts = [SAMPLE, packed.textContent].map((text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)));
    const text = await new Response(new Blob(parts).stream().pipeThrough(new DecompressionStream("deflate-raw"))).text();
    packed.insertAdjacentHTML("afterend", text.slice(text.indexOf("\0") + 1));
    document.getElementById("plain").remove();
  }

  // A copy of a panel or an item without the marks of what changed in it.
  const settled = (panel) => {
    const copy = panel.cloneNode(true);
    for (const gone of copy.querySelectorAll(".gone, .absent, .flag, s, i, em")) gone.remove();
    for (const marked of [copy, ...copy.querySelectorAll(".touched, .named, .changed, .new, .is-odd, .is-bad")]) {
      marked.classList.remove("touched", "named", "changed", "new", "is-odd", "is-bad");
    }
    return copy;
  };
  const steps = [...document.querySelectorAll(".step")];
  const controls = document.getElementById("controls");
  if (!steps.length || !controls) return;
  const said = document.getElementById("said");
  const links = [...controls.querySelectorAll(".rail a")];
  const buttons = Object.fromEntries([...controls.querySelectorAll("button")].map((b) => [b.dataset.to, b]));
  let at = -1;

  // What a step does not touch is only named: it is drawn as the step before left it.
  const last = { panels: {}, items: {}, figures: {} };
  for (const step of steps) {
    for (const figure of step.querySelectorAll("[data-figure]")) {
      const key = figure.dataset.figure;
      if (!figure.querySelector("svg") && last.figures[key]) figure.replaceChildren(settled(last.figures[key]).firstElementChild);
      last.figures[key] = figure;
    }
    for (const panel of step.querySelectorAll(".picture:not(.lawside *) > [data-panel]")) {
      const key = panel.dataset.panel;
      if (!panel.querySelector("ul") && last.panels[key]) panel.replaceChildren(...settled(last.panels[key]).childNodes);
      for (const item of panel.matches(".tree") ? [] : panel.querySelectorAll("li")) {
        const name = `${key}: ${item.dataset.item}`;
        if (item.matches(".same") && last.items[name]) item.replaceWith(settled(last.items[name]));
        else last.items[name] = item;
      }
      last.panels[key] = panel;
    }
  }

  const show = (wanted, tell = true) => {
    const next = Math.max(0, Math.min(steps.length - 1, wanted));
    if (next === at) return;
    at = next;
    steps.forEach((step, n) => { step.hidden = n !== at; });
    links.forEach((link, n) => (n === at ? link.setAttribute("aria-current", "step") : link.removeAttribute("aria-current")));
    const rail = links[at].closest(".rail"); // on a phone it scrolls aside
    rail.scrollLeft += links[at].getBoundingClientRect().left - rail.getBoundingClientRect().left - rail.clientWidth / 2;
    for (const to of ["first", "back"]) buttons[to].setAttribute("aria-disabled", at === 0);
    for (const to of ["next", "last"]) buttons[to].setAttribute("aria-disabled", at === steps.length - 1);
    if (tell) {
      said.textContent = steps[at].dataset.said;
      history.replaceState(null, "", `#step-${at}`);
    }
  };
  const go = {
    first: () => show(0),
    back: () => show(at - 1),
    next: () => show(at + 1),
    last: () => show(steps.length - 1),
  };
  const keys = { Home: go.first, ArrowLeft: go.back, ArrowRight: go.next, End: go.last };
  const linked = () => Number((location.hash.match(/^#step-(\d+)$/) || [])[1] ?? NaN);
  const scrolls = (target) => target.closest && target.closest("input, select, textarea, pre, [role=region]");

  for (const [to, button] of Object.entries(buttons)) button.addEventListener("click", go[to]);
  document.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey || scrolls(event.target)) return;
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#step-"]');
    if (!link) return;
    event.preventDefault();
    show(Number(link.hash.slice("#step-".length)));
    document.getElementById("steps-head").scrollIntoView({ block: "start" });
  });
  addEventListener("hashchange", () => { if (!Number.isNaN(linked())) show(linked()); });
  // On paper all steps stand below each other.
  addEventListener("beforeprint", () => steps.forEach((step) => { step.hidden = false; }));
  addEventListener("afterprint", () => steps.forEach((step, n) => { step.hidden = n !== at; }));

  controls.hidden = false;
  document.body.classList.add("has-steps");
  show(Number.isNaN(linked()) ? Number(controls.dataset.first) : linked(), false);
})();
