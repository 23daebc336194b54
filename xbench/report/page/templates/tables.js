"use strict";

/** Sorting by the buttons in the headings, and intervals on demand. */
(() => {
  const NEXT = { none: "first", first: "second", second: "none" };

  function key(row, column) {
    const cell = row.cells[column];
    if (!cell.classList.contains("num")) return cell.textContent.trim();
    return cell.dataset.value === undefined ? null : Number(cell.dataset.value);
  }

  function compare(one, other) {
    return typeof one === "number" ? one - other : one.localeCompare(other, "en", { numeric: true });
  }

  /** Sorts by a column; what does not exist stays last, and equal rows stay in the order of the report. */
  function sort(table, original, column, direction) {
    const rows = [...original];
    if (direction) {
      rows.sort((a, b) => {
        const [one, other] = [key(a, column), key(b, column)];
        if (one === null || other === null) return (one === null) - (other === null);
        return direction * compare(one, other);
      });
    }
    table.tBodies[0].append(...rows);
  }

  function makeSortable(table) {
    const original = [...table.tBodies[0].rows];
    const headings = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
    headings.forEach((heading, column) => {
      let state = "none";
      heading.querySelector("button").addEventListener("click", () => {
        const continuing = heading.getAttribute("aria-sort") !== "none";
        state = NEXT[continuing ? state : "none"];
        // Numbers begin with the largest, words with A.
        const first = heading.classList.contains("num") ? -1 : 1;
        const direction = { none: 0, first, second: -first }[state];
        for (const other of headings) other.setAttribute("aria-sort", "none");
        if (direction) heading.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
        sort(table, original, column, direction);
      });
    });
  }

  for (const table of document.querySelectorAll("table.sortable")) makeSortable(table);
  for (const box of document.querySelectorAll(".show-intervals")) {
    const block = box.closest(".table-block");
    const show = () => block.classList.toggle("without-intervals", !box.checked);
    box.addEventListener("change", show);
    // Browsers keep boxes checked over a reload.
    show();
  }
})();
