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
  copy(button) {
    navigator.clipboard?.writeText(location.href);
    const words = button.textContent;
    button.textContent = "copied";
    setTimeout(() => (button.textContent = words), 1200);
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
