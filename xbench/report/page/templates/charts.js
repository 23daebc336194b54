"use strict";

/** The few things that charts do: follow one series through all of them, and show one scatter of several. */
(() => {
  const main = document.getElementById("main");
  const names = [...main.querySelectorAll(".names button")];
  let kept = "";

  function follow(key) {
    for (const mark of main.querySelectorAll(".followed")) mark.classList.remove("followed");
    if (!key) {
      delete main.dataset.follow;
      return;
    }
    main.dataset.follow = key;
    for (const mark of main.querySelectorAll(`:is(.axis, .scatter, .lines) .${key}`)) mark.classList.add("followed");
  }

  for (const name of names) {
    const key = name.dataset.follow;
    for (const event of ["mouseenter", "focus"]) name.addEventListener(event, () => follow(key));
    for (const event of ["mouseleave", "blur"]) name.addEventListener(event, () => follow(kept));
    name.addEventListener("click", () => {
      kept = kept === key ? "" : key;
      for (const other of names) other.setAttribute("aria-pressed", String(other.dataset.follow === kept));
      follow(kept || key);
    });
  }

  const sets = [...main.querySelectorAll(".set")];
  const show = () => {
    const chosen = main.querySelector(".choice input:checked");
    if (chosen) sets.forEach((set, place) => { set.hidden = place !== Number(chosen.value); });
  };
  for (const input of main.querySelectorAll(".choice input")) input.addEventListener("change", show);
  // Browsers keep the choice over a reload.
  show();
})();
