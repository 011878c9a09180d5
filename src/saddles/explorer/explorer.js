// The live rooms: what the server asks of the browser.
Object.assign(window.saddles, {
  asked: {},
  drawn: Promise.resolve(),
  waits: 0,
  // Plots are drawn here and not through the page's framework, which would watch every number and draw the whole page anew.
  draw(figures, said) {
    const now = this.redraw(figures, said);
    this.drawn = Promise.all([this.drawn, now]).then(() => {}, () => {});
    return now;
  },
  async redraw(figures, said) {
    if (said !== null) document.querySelector(".said").textContent = said;
    for (const figure of figures) this.asked[figure[0]] = figure;
    const { Plotly } = await import("nicegui-plotly");
    for (const figure of figures) {
      const [id, words, data, layout] = figure;
      let plot = document.getElementById(id);
      while (!plot?._fullLayout) {
        await new Promise((later) => setTimeout(later, 10));
        plot = document.getElementById(id);
      }
      if (this.asked[id] !== figure) continue; // overtaken
      plot.setAttribute("aria-label", words);
      Plotly.react(plot, data, layout);
    }
  },
  // Mark what is drawn as out of date, `seconds` after the wait began; null takes the mark away, with the picture that is on its way.
  async wait(seconds) {
    const mine = ++this.waits;
    if (seconds === null) await this.drawn;
    if (mine !== this.waits) return; // a new wait has begun
    const on = seconds !== null && document.querySelector(".panel:not(.apart)") !== null;
    document.querySelector(".results").classList.toggle("late", on);
    document.querySelector(".panels").ariaBusy = on ? "true" : null;
    clearInterval(this.clock);
    const status = document.querySelector(".wait > span");
    if (!on) return status.replaceChildren();
    const passed = document.createElement("span"); // a screen reader is told once, not every second
    passed.ariaHidden = "true";
    status.replaceChildren("computing…", passed);
    const began = performance.now() - 1000 * seconds;
    this.clock = setInterval(() => (passed.textContent = ` ${Math.floor((performance.now() - began) / 1000)} s`), 1000);
  },
  // Set a slider and its number (never while the slider moves: it would not tell when it rests).
  set(name, value) {
    for (const id of ["set-" + name, "slide-" + name]) document.getElementById(id).value = value;
  },
});
