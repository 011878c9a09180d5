// The live rooms: what the server asks of the browser.
Object.assign(window.saddles, {
  asked: {},
  // Plots are drawn here and not through the page's framework, which would watch every number and draw the whole page anew.
  async draw(figures, said) {
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
  // Set a slider and its number (never while the slider moves: it would not tell when it rests).
  set(name, value) {
    for (const id of ["set-" + name, "slide-" + name]) document.getElementById(id).value = value;
  },
});
