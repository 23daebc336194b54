"use strict";
// Runs before anything is drawn, so that the page never flashes in the other theme.
(() => {
  let kept = null;
  try {
    kept = localStorage.getItem("xbench-theme");
  } catch {
    // A page opened as a file may have no storage; then the system's theme counts.
  }
  const dark = kept ? kept === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
})();
