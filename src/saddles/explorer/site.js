// A room without a server: its data stand inside the page. Pictures are made of a first one and of changes to it.
window.setDark = (dark) =>
  document.body.classList.toggle("body--dark", dark ?? matchMedia("(prefers-color-scheme: dark)").matches);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => saddles.theme(0));

const CONFIG = { displayModeBar: false, responsive: true, scrollZoom: false, doubleClick: "reset" };
const FRAME = 110; // milliseconds
const HOLD = 14; // frames for which a miniature rests at its end

async function unpacked(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

function changed(first, changes) {
  const made = structuredClone(first);
  for (const [path, value] of changes) {
    let place = made;
    for (const key of path.slice(0, -1)) place = place[key];
    place[path.at(-1)] = structuredClone(value);
  }
  return made;
}

async function plotting() {
  const inside = document.getElementById("plotly");
  if (inside && !window.Plotly) {
    const script = document.createElement("script");
    script.textContent = await unpacked("plotly");
    document.head.append(script);
  }
  while (!window.Plotly) await new Promise((later) => setTimeout(later, 10));
}

class Room {
  constructor(facts) {
    this.facts = facts;
    this.at = { ...facts.start };
    this.frame = facts.frames - 1;
    this.plots = [];
    this.timer = null;
    const keys = Object.keys(facts.controls);
    this.scenes = new Map(facts.scenes.map((scene) => [keys.map((key) => scene.at[key]).join("|"), scene]));
    for (const key of keys) {
      const input = document.getElementById("slide-" + key);
      input.addEventListener("input", () => this.set({ [key]: facts.controls[key][input.value] }));
    }
    this.clock = document.getElementById("slide-instant");
    this.clock?.addEventListener("input", () => this.show(Number(this.clock.value)));
    document.querySelector(".play")?.addEventListener("click", () => this.play());
    for (const [selector, by] of [[".before", -1], [".after", 1]])
      document.querySelector(selector)?.addEventListener("click", () => this.jump(by));
    document.querySelector(".story")?.addEventListener("step", (event) => this.step(facts.story[event.detail]));
    this.read();
    this.set({});
  }
  // The address holds what differs from the first view.
  read() {
    for (const [key, value] of new URLSearchParams(location.hash.slice(1)))
      for (const known of this.facts.controls[key] ?? []) if (String(known) === value) this.at[key] = known;
  }
  set(values, frame = this.frame) {
    Object.assign(this.at, values);
    const controls = this.facts.controls;
    for (const key of Object.keys(controls)) {
      const place = controls[key].indexOf(this.at[key]);
      const input = document.getElementById("slide-" + key);
      if (input.value !== String(place)) input.value = place;
      const shown = document.getElementById("set-" + key);
      if (shown) shown.textContent = this.at[key];
    }
    this.scene = this.scenes.get(Object.keys(controls).map((key) => this.at[key]).join("|"));
    this.first = changed(this.facts.first, this.scene.changes);
    const code = document.querySelector("pre.code");
    if (code) code.textContent = this.scene.code;
    const told = Object.entries(this.at).filter(([key, value]) => value !== this.facts.start[key]);
    const hash = told.length ? "#" + new URLSearchParams(told) : location.pathname + location.search;
    try {
      history.replaceState(null, "", hash);
    } catch {} // not allowed in some frames
    this.show(frame);
  }
  show(frame) {
    this.frame = frame;
    if (this.clock) {
      this.clock.value = frame;
      document.getElementById("set-instant").textContent = (frame / (this.facts.frames - 1)).toFixed(2);
    }
    if (!this.asked) requestAnimationFrame(() => this.draw()); // one drawing for all moves of a frame
    this.asked = true;
  }
  draw() {
    this.asked = false;
    const shot = changed(this.first, this.scene.frames[this.frame]);
    document.querySelector(".said").textContent = shot.said;
    const board = document.querySelector(".panels");
    // All places first: a plot takes the width that its panel has when it is drawn.
    shot.figures.forEach((figure, place) => {
      this.plots[place] ??= this.panel(board, place);
      this.plots[place].box.classList.remove("hidden");
      this.plots[place].box.classList.toggle("spread", figure.wide);
    });
    shot.figures.forEach((figure, place) => {
      const { title, plot } = this.plots[place];
      if (title.textContent !== figure.title) title.textContent = figure.title;
      plot.setAttribute("aria-label", figure.words);
      const begun = plot.data;
      Plotly.react(plot, figure.data, figure.layout, CONFIG);
      if (!begun && this.facts.click)
        plot.on("plotly_click", (event) => figure.data[0].type === "heatmap" && this.click(event.points[0], figure));
    });
    for (const { box } of this.plots.slice(shot.figures.length)) box.classList.add("hidden");
    document.body.dataset.drawn = Number(document.body.dataset.drawn ?? 0) + 1;
  }
  panel(board, place) {
    const box = document.createElement("figure");
    box.className = "panel";
    box.innerHTML = '<figcaption><span></span><button type="button" class="quiet" aria-label="download this figure as SVG">SVG</button></figcaption><div role="img"></div>';
    board.append(box);
    const plot = box.querySelector("div");
    const file = `saddles-${this.facts.name}-${place + 1}`;
    box.querySelector("button").onclick = () =>
      Plotly.downloadImage(plot, { format: "svg", filename: file, width: 720, height: 420 });
    new ResizeObserver(() => plot.data && plot.offsetParent && Plotly.Plots.resize(plot)).observe(plot);
    return { box, plot, title: box.querySelector("span") };
  }
  click(point, figure) {
    if (!figure.map) return;
    const [x, y] = this.facts.click;
    const near = (key, value) =>
      this.facts.controls[key].reduce((a, b) => (Math.abs(b - value) < Math.abs(a - value) ? b : a));
    this.set({ [x]: near(x, point.x), [y]: near(y, point.y) });
  }
  play(on = this.timer === null) {
    clearInterval(this.timer);
    this.timer = null;
    document.querySelector(".play").textContent = on ? "❚❚ pause" : "▶ play";
    if (!on) return;
    if (this.frame >= this.facts.frames - 1) this.show(0);
    this.timer = setInterval(() => {
      this.show(this.frame + 1);
      if (this.frame >= this.facts.frames - 1) this.play(false);
    }, FRAME);
  }
  jump(by) {
    const { marks } = this.scene;
    const end = this.facts.frames - 1;
    const next = by > 0 ? (marks.find((mark) => mark > this.frame) ?? (this.frame === end ? marks[0] : end)) : (marks.findLast((mark) => mark < this.frame) ?? 0);
    this.show(next ?? end);
  }
  step(step) {
    this.play(false);
    const share = step.play ? 0 : (step.settings.instant ?? 1);
    const { instant, ...settings } = step.settings;
    this.set({ ...this.facts.start, ...settings }, Math.round(share * (this.facts.frames - 1)));
    if (step.play) this.play(true);
  }
}

// A miniature of the front page moves for ever, unless the browser asks for rest.
function miniature(plot, scene) {
  const last = scene.frames.length - 1;
  let frame = last;
  const draw = () => {
    const [figure] = changed(scene.first, scene.frames[Math.min(frame, last)]).figures;
    plot.setAttribute("aria-label", figure.words);
    Plotly.react(plot, figure.data, figure.layout, { ...CONFIG, staticPlot: true });
  };
  draw();
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  setInterval(() => {
    if (document.hidden) return;
    frame = frame >= last + HOLD ? 0 : frame + 1;
    if (frame <= last) draw();
  }, FRAME);
}

document.addEventListener("DOMContentLoaded", async () => {
  saddles.theme(0);
  await new Promise(requestAnimationFrame); // the words are painted before the library is read
  if (document.getElementById("room")) {
    const facts = JSON.parse(await unpacked("room"));
    await plotting();
    window.room = new Room(facts);
  }
  for (const plot of document.querySelectorAll("[data-miniature]"))
    unpacked("mini-" + plot.dataset.miniature).then(async (text) => (await plotting(), miniature(plot, JSON.parse(text))));
});
