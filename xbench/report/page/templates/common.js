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

  /** Writes a fraction in percent, or a dash. */
  function percent(value, digits = 2) {
    return value === null || value === undefined ? "\u2013" : (100 * value).toFixed(digits);
  }

  function setTheme(theme) {
    root.dataset.theme = theme;
    document.getElementById("theme").setAttribute("aria-pressed", String(theme === "dark"));
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

  return { data, element, fill, percent };
})();
