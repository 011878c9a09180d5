// The theme is the browser's own unless chosen here; the choice stays in this browser.
window.saddles = {
  theme(step) {
    const order = ["auto", "light", "dark"];
    let now = localStorage.getItem("saddles-theme") || "auto";
    if (step) now = order[(order.indexOf(now) + 1) % 3];
    localStorage.setItem("saddles-theme", now);
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
};
