"use strict";

/** The browser of cases: radiographs with maps, regions and the highest place of each map. */
(() => {
  const { element, fill, percent } = report;
  const { cases, pictures } = report.data("case-data");
  const colours = report.data("colour-data");
  const SVG = "http://www.w3.org/2000/svg";
  const PORTION = 8;
  const field = (name) => document.getElementById(`case-${name}`);
  const list = field("list");
  const dialog = field("dialog");
  let shown = [];
  let portion = PORTION;
  let opened = -1;
  let opener = null;

  // Pictures

  const decoded = new Map();
  // Where a map is low, the radiograph shows through.
  const palette = colours.map((rgb, value) => [...rgb, Math.round(255 * Math.min(1, 0.1 + (1.6 * value) / 255))]);

  /** Turns the grey picture of a map into colours, on a canvas of its size. */
  async function paint(canvas, map) {
    if (!decoded.has(map)) {
      const image = new Image();
      image.src = `data:image/png;base64,${map}`;
      decoded.set(map, image.decode().then(() => image));
    }
    const image = await decoded.get(map);
    [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.drawImage(image, 0, 0);
    const pixels = context.getImageData(0, 0, canvas.width, canvas.height);
    for (let place = 0; place < pixels.data.length; place += 4) {
      pixels.data.set(palette[pixels.data[place]], place);
    }
    context.putImageData(pixels, 0, 0);
  }

  const waiting = new Map();
  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      observer.unobserve(entry.target);
      paint(entry.target, waiting.get(entry.target));
      waiting.delete(entry.target);
    }
  }, { rootMargin: "300px" });

  function drawing(name, attributes = {}, ...children) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  function outline(example) {
    const box = `0 0 ${example.size[0]} ${example.size[1]}`;
    return drawing("svg", { class: "region", viewBox: box, preserveAspectRatio: "none", "aria-hidden": "true" },
      drawing("path", { class: "under", d: example.region }), drawing("path", { class: "over", d: example.region }));
  }

  function cross(example, panel) {
    const [width, height] = example.size;
    const [x, y] = [panel.peak[0] * width, panel.peak[1] * height];
    const arm = Math.max(width, height) / 40;
    const path = `M${x - arm} ${y - arm}L${x + arm} ${y + arm}M${x - arm} ${y + arm}L${x + arm} ${y - arm}`;
    return drawing("svg", { class: "peaks", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      drawing("path", { class: "peak under", d: path }), drawing("path", { class: "peak", d: path }));
  }

  /** The layers of one picture: radiograph, map, region, highest place. */
  function view(example, panel) {
    const alt = panel ? `${example.finding} in ${example.image}: map of ${panel.model}` : `${example.finding} in ${example.image}: radiograph with region`;
    const layers = [element("img", { src: `data:image/jpeg;base64,${pictures[example.picture]}`, alt })];
    if (panel) {
      const canvas = element("canvas", { "aria-hidden": "true" });
      waiting.set(canvas, panel.map);
      observer.observe(canvas);
      layers.push(canvas);
    }
    layers.push(outline(example));
    if (panel) layers.push(cross(example, panel));
    return element("span", { class: "view", style: `aspect-ratio: ${example.size[0]} / ${example.size[1]}` }, ...layers);
  }

  // Words

  function verdict(panel) {
    if (panel.hit >= 0.5) return element("span", { class: "hit" }, panel.hit < 1 ? `points at it (${percent(panel.hit, 0)} % of ties)` : "points at it");
    const words = panel.look === "near miss" ? "points just beside it" : "points elsewhere";
    return element("span", { class: "miss" }, panel.hit > 0 ? `${words} (${percent(panel.hit, 0)} % of ties hit)` : words);
  }

  function caption(panel) {
    const recognised = panel.recognised === null ? "" : panel.recognised ? ", recognised" : ", not recognised";
    return element("figcaption", {},
      element("b", {}, panel.model), verdict(panel), element("br"),
      `Dice at 0.5: ${percent(panel.dice, 1)}`, element("br"), `probability ${Number(panel.probability).toPrecision(3)}${recognised}`);
  }

  function panels(example) {
    const chosen = field("model").value;
    const plain = element("figure", { class: "panel" }, view(example, null), element("figcaption", {}, element("b", {}, "Region"), "as annotated"));
    return element("div", { class: "panels" }, plain, ...example.panels
      .filter((panel) => !chosen || panel.model === chosen)
      .map((panel) => element("figure", { class: "panel" }, view(example, panel), caption(panel))));
  }

  function reasons(example) {
    return element("ul", { class: "reasons", "aria-label": "Chosen as" }, ...example.reasons.map((reason) => element("li", {}, reason)));
  }

  const name = (example) => `${example.finding}, ${example.dataset}`;

  function card(example, place) {
    const button = element("button", { type: "button", "aria-label": `Enlarge ${name(example)}, ${example.image}` }, "Enlarge");
    button.addEventListener("click", () => open(place, button));
    const pictured = panels(example);
    pictured.addEventListener("click", () => open(place, button));
    return element("article", { class: "case" },
      element("header", {},
        element("div", {}, element("h3", {}, name(example)), element("p", {}, example.image), reasons(example)), button),
      pictured);
  }

  // Which cases

  /** The score that filters and sorts: of the chosen model, else the mean over models. */
  function score(example) {
    const chosen = field("model").value;
    const of = example.panels.filter((panel) => !chosen || panel.model === chosen);
    const key = field("score").value;
    return of.length ? of.reduce((sum, panel) => sum + panel[key], 0) / of.length : null;
  }

  function refresh() {
    const wanted = { dataset: field("dataset").value, finding: field("finding").value, reason: field("reason").value };
    const bound = (input, otherwise) => (input.value === "" || Number.isNaN(Number(input.value)) ? otherwise : Number(input.value) / 100);
    const [low, high] = [bound(field("low"), 0), bound(field("high"), 1)];
    shown = cases.filter((example) => {
      const value = score(example);
      return (!wanted.dataset || example.dataset === wanted.dataset) &&
        (!wanted.finding || example.finding === wanted.finding) &&
        (!wanted.reason || example.reasons.includes(wanted.reason)) &&
        value !== null && value >= low - 1e-9 && value <= high + 1e-9;
    });
    const order = Number(field("order").value);
    if (order) shown = [...shown].sort((one, other) => order * (score(one) - score(other)));
    portion = PORTION;
    show();
  }

  function show() {
    for (const canvas of waiting.keys()) observer.unobserve(canvas);
    waiting.clear();
    const drawn = shown.slice(0, portion);
    // Cards of few pictures stand side by side.
    const widest = Math.max(2, ...drawn.map((example) => (field("model").value ? 2 : example.panels.length + 1)));
    list.style.setProperty("--across", Math.min(widest, 8));
    list.replaceChildren(...drawn.map(card));
    field("more").hidden = shown.length <= portion;
    const models = field("model").value || "mean over models";
    field("count").textContent = cases.length
      ? `${shown.length} of ${cases.length} cases, ${drawn.length} drawn. Scores filter by: ${models}.`
      : "The runs kept no maps, so there are no cases to show.";
  }

  function more() {
    const first = portion;
    portion += PORTION;
    // Those on the page stay as they are; only the new ones are added.
    list.append(...shown.slice(first, portion).map((example, place) => card(example, first + place)));
    field("more").hidden = shown.length <= portion;
    field("count").textContent = field("count").textContent.replace(/\d+ drawn/, `${Math.min(portion, shown.length)} drawn`);
    list.children[first]?.querySelector("button").focus();
  }

  // Enlarged

  function enlarge() {
    const example = shown[opened];
    field("dialog-title").textContent = `${name(example)} (${opened + 1} of ${shown.length})`;
    const pictured = element("div", { class: "case" }, element("p", {}, example.image), reasons(example), element("br"), panels(example));
    field("large").replaceChildren(pictured);
    field("large").scrollTop = 0;
    field("large").classList.toggle("few", pictured.querySelectorAll(".panel").length <= 3);
    field("previous").disabled = opened === 0;
    field("next").disabled = opened === shown.length - 1;
  }

  function open(place, from) {
    opened = place;
    opener = from;
    enlarge();
    // One set of switches for both: while the dialog is open, they are in it.
    field("large").before(field("layers"));
    dialog.showModal();
    field("dialog-title").focus();
  }

  function go(step) {
    const next = opened + step;
    if (next < 0 || next >= shown.length) return;
    opened = next;
    enlarge();
    // A disabled button loses the focus, and with it the arrow keys.
    if (document.activeElement === document.body || document.activeElement?.disabled) field("dialog-title").focus();
  }

  field("previous").addEventListener("click", () => go(-1));
  field("next").addEventListener("click", () => go(1));
  field("close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    go(step);
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  dialog.addEventListener("close", () => {
    field("large").replaceChildren();
    filters.append(field("layers"));
    opener?.focus();
  });

  // Controls

  const distinct = (values) => [...new Set(values)];
  const options = (first, values) => [["", first], ...values.map((value) => [value, value])];

  function findings() {
    const of = cases.filter((example) => !field("dataset").value || example.dataset === field("dataset").value);
    const kept = field("finding").value;
    const names = distinct(of.map((example) => example.finding)).sort();
    fill(field("finding"), options("all", names));
    if (names.includes(kept)) field("finding").value = kept;
  }

  fill(field("dataset"), options("all", distinct(cases.map((example) => example.dataset))));
  fill(field("reason"), options("any", distinct(cases.flatMap((example) => example.reasons))));
  fill(field("model"), options("all", distinct(cases.flatMap((example) => example.panels.map((panel) => panel.model)))));
  findings();

  function layers() {
    for (const place of [list, dialog]) {
      for (const layer of ["image", "map", "region", "peak"]) {
        place.classList.toggle(`no-${layer}`, !document.getElementById(`show-${layer}`).checked);
      }
      place.style.setProperty("--opacity", document.getElementById("opacity").value / 100);
    }
  }

  const filters = field("filters");
  filters.addEventListener("submit", (event) => event.preventDefault());
  filters.addEventListener("input", (event) => {
    if (event.target === field("dataset")) findings();
    if (event.target.id.startsWith("case-")) refresh();
  });
  field("layers").addEventListener("input", layers);
  filters.addEventListener("reset", () => setTimeout(() => {
    findings();
    refresh();
    layers();
  }));
  field("more").addEventListener("click", more);

  const bar = document.getElementById("colour-bar").getContext("2d");
  colours.forEach((rgb, place) => {
    bar.fillStyle = `rgb(${rgb.join(",")})`;
    bar.fillRect(place, 0, 1, 1);
  });
  layers();
  refresh();
})();
