// What the live rooms and the static site have in common.
window.saddles = {
  // The theme is the browser's own unless chosen here; the choice stays in this browser.
  theme(step) {
    const order = ["auto", "light", "dark"];
    let now = "auto";
    try {
      now = localStorage.getItem("saddles-theme") || "auto";
      if (step) now = order[(order.indexOf(now) + 1) % 3];
      localStorage.setItem("saddles-theme", now);
    } catch {} // a frame of another site may have no storage
    setDark(now === "auto" ? null : now === "dark");
    const button = document.querySelector(".theme");
    if (button) button.textContent = "theme: " + now;
  },
  // On a phone: show all settings, or the clock alone.
  more(button) {
    const open = button.closest(".controls").classList.toggle("open");
    button.ariaExpanded = String(open);
    button.textContent = open ? "fewer settings ▾" : "all settings ▴";
  },
  copy(button) {
    navigator.clipboard?.writeText(location.href);
    const words = button.textContent;
    button.textContent = "copied";
    setTimeout(() => (button.textContent = words), 1200);
  },
  // Sort a table by the column of a heading: numbers as numbers, once more the other way round.
  sort(button) {
    const head = button.closest("th");
    const place = [...head.parentElement.children].indexOf(head);
    const body = head.closest("table").tBodies[0];
    const sign = head.ariaSort === "ascending" ? -1 : 1;
    for (const other of head.parentElement.children) other.ariaSort = null;
    head.ariaSort = sign > 0 ? "ascending" : "descending";
    const text = (row) => row.children[place].textContent;
    body.append(...[...body.rows].sort((a, b) => sign * text(a).localeCompare(text(b), undefined, { numeric: true })));
  },
  // Open step k of the room's story; the page listens to the event and sets the step's settings.
  step(k) {
    const story = document.querySelector(".story");
    for (const one of story.querySelectorAll("article")) one.hidden = one.dataset.step !== String(k);
    for (const one of story.querySelectorAll("[data-go]")) one.ariaCurrent = one.dataset.go === String(k) ? "step" : null;
    story.querySelector(".begin").hidden = true;
    story.dispatchEvent(new CustomEvent("step", { detail: k, bubbles: true }));
  },
};
