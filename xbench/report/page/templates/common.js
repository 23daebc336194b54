"use strict";

/** What the other scripts share. */
const report = (() => {
  const root = document.documentElement;

  /** Reads the data in a script element of type application/json. */
  function data(id) {
    return JSON.parse(document.getElementById(id).textContent);
  }

  /** Makes an element; children that are strings become text, never markup. */
  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
    }
    made.append(...children.filter((child) => child !== null));
    return made;
  }

  /** Fills a select with options, each [value, text], and keeps the first chosen. */
  function fill(select, options) {
    select.replaceChildren(...options.map(([value, text]) => element("option", { value }, text)));
  }

  /** Writes a fraction in per cent, or a dash. */
  function percent(value, digits = 2) {
    return value === null || value === undefined ? "\u2013" : (100 * value).toFixed(digits);
  }

  /** Writes [value, low, high] in per cent with its interval. */
  function estimate(values, digits = 2) {
    if (!values || values[0] === null) return "\u2013";
    const range = values[1] === null ? "" : ` [${percent(values[1], digits)}, ${percent(values[2], digits)}]`;
    return percent(values[0], digits) + range;
  }

  /** Shows a theme for a while, such as light on paper; null ends it. */
  let own = null;
  function lend(theme) {
    own ??= root.dataset.theme;
    root.dataset.theme = theme ?? own;
    if (!theme) own = null;
  }

  function setTheme(theme) {
    root.dataset.theme = theme;
    document.getElementById("theme").setAttribute("aria-pressed", String(theme === "dark"));
    document.dispatchEvent(new Event("themechange"));
  }

  const toggle = document.getElementById("theme");
  toggle.setAttribute("aria-pressed", String(root.dataset.theme === "dark"));
  let chosen = false;
  toggle.addEventListener("click", () => {
    chosen = true;
    setTheme(root.dataset.theme === "dark" ? "light" : "dark");
    try {
      localStorage.setItem("xbench-theme", root.dataset.theme);
    } catch {
      // Then the choice lasts as long as the page.
    }
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => {
    if (!chosen) setTheme(event.matches ? "dark" : "light");
  });

  // The contents are a column beside the text where there is room, and fold where there is not.
  const contents = document.getElementById("contents");
  const wide = matchMedia("(min-width: 70rem)");
  const arrange = () => {
    contents.open = wide.matches;
  };
  wide.addEventListener("change", arrange);
  arrange();

  const links = new Map([...contents.querySelectorAll("a")].map((link) => [link.hash.slice(1), link]));
  const seen = new Set();
  const observer = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (entry.isIntersecting) seen.add(entry.target.id);
        else seen.delete(entry.target.id);
      }
      const first = [...links.keys()].find((id) => seen.has(id));
      for (const [id, link] of links) {
        if (id === first) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      }
    },
    { rootMargin: "-10% 0px -60% 0px" },
  );
  for (const id of links.keys()) observer.observe(document.getElementById(id));

  return { data, element, fill, percent, estimate, lend };
})();
