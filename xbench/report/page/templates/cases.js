"use strict";

/** The browser of cases: one image at a time, with its map and its annotated region, large and side by side. */
(() => {
  const { element, fill, percent } = report;
  const { cases, pictures, models, opened } = report.data("case-data");
  const colors = report.data("color-data");
  const SVG = "http://www.w3.org/2000/svg";
  const OUTCOMES = [
    ["", "All"],
    ["right", "Recognized, on the lesion"],
    ["outside", "Recognized, peak outside"],
    ["silent", "Not recognized, on the lesion"],
    ["wrong", "Both wrong"],
  ];
  /** Cases on paper: two pages of them. */
  const PRINTED = 5;
  const field = (name) => document.getElementById(`case-${name}`);
  const viewer = document.getElementById("case");
  const filters = field("filters");
  let shown = [];
  let place = 0;

  // Pictures

  const decoded = new Map();

  /** Turns the gray picture of a map into colors, on a canvas of its size. */
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
    for (let at = 0; at < pixels.data.length; at += 4) pixels.data.set(colors[pixels.data[at]], at);
    context.putImageData(pixels, 0, 0);
  }

  function drawing(name, attributes = {}, ...children) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  function layer(kind, example, path) {
    const box = `0 0 ${example.size[0]} ${example.size[1]}`;
    return drawing("svg", { class: kind, viewBox: box, preserveAspectRatio: "none", "aria-hidden": "true" },
      drawing("path", { class: "casing", d: path }), drawing("path", { class: "line", d: path }));
  }

  function cross(example, panel) {
    const [width, height] = example.size;
    const [x, y] = [panel.peak[0] * width, panel.peak[1] * height];
    const arm = Math.max(width, height) / 40;
    return layer("peaks", example, `M${x - arm} ${y}H${x + arm}M${x} ${y - arm}V${y + arm}`);
  }

  /** The boxes and points of a model that answers. */
  function answered(example, panel) {
    const [width, height] = example.size;
    const boxes = panel.boxes.map(([x0, y0, x1, y1]) => `M${x0 * width} ${y0 * height}H${x1 * width}V${y1 * height}H${x0 * width}Z`);
    const points = panel.points.map((point) => cross(example, { peak: point }));
    return [layer("boxes", example, boxes.join("")), ...points];
  }

  /** An image with what lies over it: the map of a panel with its peak, or its boxes, and the outline. */
  function view(example, alt, panel, outlined) {
    const layers = [element("img", { src: `data:image/jpeg;base64,${pictures[example.picture]}`, alt })];
    if (panel && !panel.boxes) {
      const canvas = element("canvas", { "aria-hidden": "true" });
      paint(canvas, panel.map);
      layers.push(canvas);
    }
    if (outlined) layers.push(layer("region", example, example.region));
    if (panel && panel.boxes) layers.push(...answered(example, panel));
    else if (panel) layers.push(cross(example, panel));
    return element("span", { class: "view", style: `aspect-ratio: ${example.aspect}` }, ...layers);
  }

  // Words

  const model = () => field("model").value;
  const panelOf = (example) => example.panels.find((panel) => panel.model === model());
  const grounded = (panel) => panel.hit >= 0.5;

  function outcome(panel) {
    if (panel.recognized === null) return "";
    if (panel.recognized) return grounded(panel) ? "right" : "outside";
    return grounded(panel) ? "silent" : "wrong";
  }

  function verdict(panel) {
    if (panel.boxes && !panel.peak) return element("b", { class: "wrong" }, `No box (${panel.status})`);
    const of = panel.boxes ? (panel.boxes.length ? "the box area" : "the points") : "the tied peaks";
    const ties = panel.hit > 0 && panel.hit < 1 ? ` (${percent(panel.hit, 0)}% of ${of} on the lesion)` : "";
    const words = grounded(panel) ? "on the lesion" : panel.look === "near miss" ? "just beside it" : "elsewhere";
    return element("b", { class: grounded(panel) ? "hit" : panel.recognized === false ? "wrong" : "miss" }, `${panel.boxes ? (panel.boxes.length ? "Box" : "Point") : "Peak"} ${words}${ties}`);
  }

  function recognized(panel) {
    if (panel.probability === null) return panel.recognized === null ? "no probability" : "yes or no could not be read";
    const probability = Number(panel.probability).toPrecision(3);
    return panel.recognized === null ? `probability ${probability}` : `${panel.recognized ? "recognized" : "not recognized"} (probability ${probability})`;
  }

  const title = (example) => field("dataset").options.length > 2 ? `${example.finding}, ${example.dataset}` : example.finding;

  const about = (example) => `${example.image}. Chosen as: ${example.reasons.join("; ")}.`;

  // The case

  /** The three pictures of a case: the image, the map over it, and the annotated region. */
  function figures(example, panel) {
    const figure = (kind, words, seen) => element("figure", { class: kind }, seen, element("figcaption", {}, words));
    return [
      figure("plain", "Image", view(example, `${example.image}: radiograph`, null, false)),
      figure("mapped", `${panel.boxes ? "Answer" : "Map"} of ${panel.model}`, view(example, `${example.image}: ${panel.boxes ? "answer" : "map"} of ${panel.model} for ${example.finding}`, panel, true)),
      figure("annotated", `${example.finding} as annotated`, view(example, `${example.image}: annotated region`, null, true)),
    ];
  }

  function said(panel) {
    const dice = panel.dice === null ? "" : `${panel.boxes ? "Dice" : "Dice at threshold 0.5"}: ${percent(panel.dice, 1)}%.`;
    const words = [verdict(panel), `, ${recognized(panel)}. ${dice}`];
    return panel.boxes ? [...words, element("code", { class: "raw" }, panel.raw || "(an empty answer)")] : words;
  }

  function show() {
    viewer.hidden = shown.length === 0;
    for (const name of ["previous", "next", "strip"]) field(name).hidden = shown.length < 2;
    field("none").hidden = shown.length > 0;
    if (!shown.length) {
      field("none").textContent = cases.length ? "No case is like that: choose another outcome, or reset." : "The runs kept no maps, so there are no cases to show.";
      return;
    }
    const example = shown[place];
    const panel = panelOf(example);
    field("title").textContent = `${title(example)} \u00b7 ${place + 1} of ${shown.length}`;
    field("about").textContent = about(example);
    field("views").replaceChildren(...figures(example, panel));
    field("said").replaceChildren(...said(panel));
    const others = example.panels.filter((one) => one !== panel);
    field("others").replaceChildren(...others.map((one) => {
      const button = element("button", { type: "button", class: "other", "aria-label": `Show the map of ${one.model}` }, view(example, "", one, true), element("span", {}, one.model), verdict(one));
      button.addEventListener("click", () => {
        field("model").value = one.model;
        refresh(example);
        viewer.focus({ preventScroll: true });
      });
      return button;
    }));
    field("link").href = link(example);
    field("link").textContent = "Copy link";
    for (const [at, item] of [...field("strip").children].entries()) {
      const button = item.firstChild;
      if (at === place) {
        button.setAttribute("aria-current", "true");
        field("strip").scrollTo({ left: item.offsetLeft - field("strip").offsetLeft - 120 });
      } else button.removeAttribute("aria-current");
    }
  }

  function go(to) {
    if (!shown.length) return;
    place = (to + shown.length) % shown.length;
    show();
    paper();
  }

  /**
   * What is printed: the case in sight, then others of those that are shown, each outcome in its turn. It is kept ready
   * on the page, for a browser that prints does not wait until maps are painted.
   */
  function paper() {
    const turns = new Map(), current = shown[place];
    const ranked = [...shown.slice(place), ...shown.slice(0, place)].map((example) => {
      const key = outcome(panelOf(example));
      turns.set(key, (turns.get(key) ?? -1) + 1);
      return [example === current ? -1 : turns.get(key), example];
    });
    const printed = ranked.sort(([one], [other]) => one - other).slice(0, PRINTED).map(([, example]) => example);
    const count = printed.length < shown.length ? `${printed.length} of ${shown.length} cases` : `${printed.length} ${printed.length === 1 ? "case" : "cases"}`;
    field("paper").replaceChildren(...(printed.length ? [element("p", {}, `${count}. The page itself has all ${cases.length}, with the maps of every run.`)] : []),
      ...printed.map((example) => element("article", {},
        element("h3", {}, title(example)), element("p", {}, about(example)),
        element("div", {}, ...figures(example, panelOf(example))), element("p", {}, ...said(panelOf(example))))));
  }

  function thumbnail(example, at) {
    const panel = panelOf(example);
    const seen = element("span", { class: "view", style: `aspect-ratio: ${example.aspect}` },
      element("img", { src: `data:image/jpeg;base64,${pictures[example.picture]}`, alt: "", loading: "lazy" }), layer("region", example, example.region));
    const button = element("button", { type: "button", class: grounded(panel) ? "hit" : panel.recognized === false ? "wrong" : "miss", "aria-label": `${title(example)}, ${example.image}` }, seen);
    button.addEventListener("click", () => go(at));
    return element("li", {}, button);
  }

  // Which cases

  /** Lists the cases that are wanted, and shows `kept` if it is among them, else the first. */
  function refresh(kept) {
    const wanted = { dataset: field("dataset").value, finding: field("finding").value, reason: field("reason").value };
    const of = cases.filter((example) => panelOf(example) &&
      (!wanted.dataset || example.dataset === wanted.dataset) &&
      (!wanted.finding || example.finding === wanted.finding) &&
      (!wanted.reason || example.reasons.includes(wanted.reason)));
    const chosen = filters.elements.outcome?.value ?? "";
    count(of, chosen);
    shown = of.filter((example) => !chosen || outcome(panelOf(example)) === chosen);
    const order = Number(field("order").value);
    if (order) shown.sort((one, other) => order * (panelOf(one).dice - panelOf(other).dice));
    place = Math.max(0, shown.indexOf(kept));
    field("strip").replaceChildren(...shown.map(thumbnail));
    show();
    paper();
  }

  /** Says beside each outcome how many cases have it. */
  function count(of, chosen) {
    for (const label of field("outcome").querySelectorAll("label")) {
      const { value } = label.firstChild;
      const found = of.filter((example) => !value || outcome(panelOf(example)) === value).length;
      label.lastChild.textContent = String(found);
      label.classList.toggle("none", found === 0 && value !== chosen);
    }
  }

  const distinct = (values) => [...new Set(values)];
  const options = (first, values) => [["", first], ...values.map((value) => [value, value])];

  function findings() {
    const of = cases.filter((example) => !field("dataset").value || example.dataset === field("dataset").value);
    const kept = field("finding").value;
    const names = distinct(of.map((example) => example.finding)).sort();
    fill(field("finding"), options("all", names));
    if (names.includes(kept)) field("finding").value = kept;
  }

  // Links

  const link = (example) => `#case=${[example.dataset, example.image, example.finding, model()].map(encodeURIComponent).join("/")}`;

  /** Shows the case that the address names, whatever was filtered. */
  function follow() {
    if (!location.hash.startsWith("#case=")) return;
    let words = [];
    try {
      words = location.hash.slice(6).split("/").map(decodeURIComponent);
    } catch {
      // Not a link of ours.
    }
    const [dataset, image, finding, of] = words;
    const example = cases.find((one) => one.dataset === dataset && one.image === image && one.finding === finding);
    document.getElementById("cases").scrollIntoView();
    if (!example) {
      field("none").hidden = false;
      field("none").textContent = "The case that the link names is not in this report.";
      return;
    }
    filters.reset();
    // Behind what the reset itself sets off.
    setTimeout(() => {
      if (example.panels.some((panel) => panel.model === of)) field("model").value = of;
      refresh(example);
      viewer.focus({ preventScroll: true });
    });
  }

  field("link").addEventListener("click", async (event) => {
    event.preventDefault();
    history.replaceState(null, "", field("link").href);
    try {
      await navigator.clipboard.writeText(location.href);
      field("link").textContent = "Link copied";
    } catch {
      field("link").textContent = "Link is in the address bar";
    }
  });

  // Controls

  field("previous").addEventListener("click", () => go(place - 1));
  field("next").addEventListener("click", () => go(place + 1));
  document.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const focused = document.activeElement;
    const here = document.getElementById("cases").contains(focused) && !focused.matches("select, input:not([type=checkbox])");
    if (!step || !here || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    go(place + step);
  });
  filters.addEventListener("submit", (event) => event.preventDefault());
  filters.addEventListener("input", (event) => {
    if (event.target === field("dataset")) findings();
    refresh(shown[place]);
  });
  // After a click on a filter the arrow keys go through the cases; who comes by keyboard stays at the filter.
  let clicked = false;
  filters.addEventListener("pointerdown", () => { clicked = true; });
  filters.addEventListener("keydown", () => { clicked = false; });
  for (const kind of ["click", "input"]) {
    filters.addEventListener(kind, (event) => {
      if (clicked && (kind === "input" || event.target.type === "radio")) viewer.focus({ preventScroll: true });
    });
  }
  filters.addEventListener("reset", () => setTimeout(() => {
    findings();
    refresh();
  }));
  field("layers").addEventListener("input", layers);

  function layers() {
    for (const kind of ["region", "peak"]) viewer.classList.toggle(`no-${kind}`, !document.getElementById(`show-${kind}`).checked);
    viewer.style.setProperty("--opacity", document.getElementById("opacity").value / 100);
  }

  for (const [value, words] of OUTCOMES) {
    field("outcome").append(element("label", { class: value || null },
      element("input", { type: "radio", name: "outcome", value, checked: value === "" }), words, element("span", { class: "n" }, "")));
  }
  fill(field("model"), models.map((name) => [name, name]));
  for (const option of field("model").options) if (option.value === opened) option.defaultSelected = true;
  field("of-model").hidden = models.length < 2;
  fill(field("dataset"), options("all", distinct(cases.map((example) => example.dataset))));
  field("of-dataset").hidden = field("dataset").options.length < 3;
  fill(field("reason"), options("any", distinct(cases.flatMap((example) => example.reasons))));
  const bar = document.getElementById("color-bar").getContext("2d");
  colors.forEach(([red, green, blue, opacity], at) => {
    bar.fillStyle = `rgb(${red} ${green} ${blue} / ${opacity / 255})`;
    bar.fillRect(at, 0, 1, 1);
  });
  findings();
  layers();
  refresh();
  follow();
  addEventListener("hashchange", follow);
})();
