"use strict";
// Without this script the page shows everything; with it, tables sort and classes are chosen.
(() => {
  const all = (query, root = document) => [...root.querySelectorAll(query)];
  const picks = all(".pick");
  const chosen = document.getElementById("chosen");
  const pictures = document.getElementById("pictures");
  const back = document.getElementById("all");

  const choose = (label) => {
    let name = "";
    for (const pick of picks) {
      const mine = pick.dataset.class === label;
      pick.setAttribute("aria-pressed", String(mine));
      if (mine) name = pick.textContent;
    }
    const off = label !== null;
    for (const sheet of all(".sheet")) sheet.hidden = off && sheet.dataset.class !== label;
    for (const row of all("tr[data-classes]"))
      row.hidden = off && !row.dataset.classes.split(" ").includes(label);
    chosen.hidden = !off;
    back.textContent = off ? `only ${name} \u2715 show all` : "";
  };

  for (const pick of picks)
    pick.addEventListener("click", () => {
      const again = pick.getAttribute("aria-pressed") === "true";
      choose(again ? null : pick.dataset.class);
      const top = pictures.getBoundingClientRect().top;
      if (!again && (top < 0 || top > innerHeight * 0.6)) pictures.scrollIntoView();
    });
  back.addEventListener("click", () => choose(null));

  const key = (row, column) => row.cells[column].dataset.v ?? row.cells[column].textContent;
  const words = new Intl.Collator(undefined, { numeric: true });
  for (const button of all(".sort"))
    button.addEventListener("click", () => {
      const head = button.closest("th");
      const body = head.closest("table").tBodies[0];
      const column = head.cellIndex;
      const numeric = head.classList.contains("n");
      // numbers are looked at from the largest down first, names from A to Z
      const now = head.getAttribute("aria-sort") ?? (numeric ? "ascending" : "descending");
      const sign = now === "ascending" ? -1 : 1;
      for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
      const compare = numeric ? (a, b) => Number(a) - Number(b) : words.compare;
      const rows = [...body.rows];
      rows.sort((a, b) => sign * compare(key(a, column), key(b, column)));
      body.append(...rows);
    });

  const find = document.getElementById("find");
  if (find)
    find.addEventListener("input", () => {
      const part = find.value.trim().toLowerCase();
      for (const pick of picks)
        pick.closest("tr").hidden = !pick.textContent.toLowerCase().includes(part);
    });
})();
