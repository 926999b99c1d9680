// Charts: lines over time, drawn as SVG. No library, no inline style: colours come from classes.

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 170, LEFT = 42, RIGHT = 4, TOP = 8, BOTTOM = 20;

export function number(value) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en-GB");
  return value.toLocaleString("en-GB", { maximumFractionDigits: Math.abs(value) < 100 ? 1 : 0, minimumFractionDigits: Math.abs(value) < 100 ? 1 : 0 });
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const whole = Math.floor(seconds);
  if (whole >= 86400) return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
  if (whole >= 3600) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 60)} min ${whole % 60} s`;
}

function short(value) {
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (value >= size) return `${+(value / size).toFixed(1)}${unit}`;
  }
  return `${+value.toFixed(value < 1 ? 2 : 1)}`;
}

function shortSpan(seconds) {
  if (seconds >= 86400) return `${+(seconds / 86400).toFixed(1)} d`;
  if (seconds >= 3600) return `${+(seconds / 3600).toFixed(1)} h`;
  if (seconds >= 60) return `${+(seconds / 60).toFixed(1)} min`;
  return seconds >= 1 || seconds === 0 ? `${+seconds.toFixed(1)} s` : `${Math.round(seconds * 1000)} ms`;
}

// A round number not below the largest value, so that the axis reads well.
function ceiling(largest, spans) {
  if (largest <= 0) return 1;
  const steps = spans ? [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400] : [];
  for (const step of steps) if (step >= largest) return step;
  const power = 10 ** Math.floor(Math.log10(largest));
  for (const factor of [1, 2, 4, 5, 8, 10]) if (factor * power >= largest) return factor * power;
  return 10 * power;
}

function element(name, attributes, parent) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (parent) parent.append(made);
  return made;
}

const clock = (at) => new Date(at * 1000).toISOString().slice(11, 16);
const exactClock = (at) => new Date(at * 1000).toISOString().slice(11, 19);

export class Chart {
  constructor(figure) {
    this.figure = figure;
    this.plot = figure.querySelector(".plot");
    this.title = figure.querySelector("h3").firstChild.textContent;
    this.spans = figure.dataset.chart === "waiting";
    this.keys = [...figure.querySelectorAll("[data-series]")];
    this.names = this.keys.map((key) => key.dataset.series);
    this.hidden = new Set();
    this.data = null;
    this.span = 900;
    this.chosen = null; // index of the point under the cursor
    for (const key of this.keys) key.addEventListener("click", () => this.toggle(key));
    this.plot.replaceChildren();
    this.svg = element("svg", { height: HEIGHT, role: "img", tabindex: 0 }, this.plot);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.choose(null));
    this.svg.addEventListener("blur", () => this.choose(null));
    this.svg.addEventListener("keydown", (event) => this.step(event));
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  toggle(key) {
    const name = key.dataset.series, off = !this.hidden.has(name);
    off ? this.hidden.add(name) : this.hidden.delete(name);
    key.setAttribute("aria-pressed", String(!off));
    this.draw();
  }

  show(data, span) {
    this.data = data;
    this.span = span;
    this.draw();
  }

  format(value) { return this.spans ? duration(value) : number(value); }

  // The range of columns that the span covers.
  visible() {
    const { at } = this.data, last = at.length ? at[at.length - 1] : 0;
    let first = at.findIndex((one) => one >= last - this.span);
    if (first < 0) first = 0;
    return { first, last: at.length - 1, from: last - this.span, to: last };
  }

  draw() {
    const width = this.plot.clientWidth;
    if (!this.data || !width) return;
    const { first, last, from, to } = this.visible();
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.replaceChildren();
    const names = this.names.filter((name) => !this.hidden.has(name));
    let largest = 0;
    for (const name of names) for (let i = first; i <= last; i++) largest = Math.max(largest, this.data[name][i] ?? 0);
    const top = ceiling(largest, this.spans);
    this.x = (at) => LEFT + ((at - from) / (to - from || 1)) * (width - LEFT - RIGHT);
    this.y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - TOP - BOTTOM);
    for (const part of [0, 0.5, 1]) {
      const y = this.y(top * part);
      element("line", { class: part ? "gridline" : "axis", x1: LEFT, x2: width - RIGHT, y1: y, y2: y }, this.svg);
      element("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, this.svg).textContent = this.spans ? shortSpan(top * part) : short(top * part);
    }
    for (const part of [0, 0.5, 1]) {
      const at = from + this.span * part, anchor = part === 0 ? "start" : part === 1 ? "end" : "middle";
      element("text", { x: this.x(at), y: HEIGHT - 4, "text-anchor": anchor }, this.svg).textContent = clock(at);
    }
    if (last - first < 1) element("text", { x: (LEFT + width) / 2, y: HEIGHT / 2, "text-anchor": "middle" }, this.svg).textContent = "waiting for the first figures";
    for (const name of names) this.curve(name, first, last);
    if (this.chosen !== null && this.chosen >= first && this.chosen <= last) this.mark(names);
    else this.chosen = null;
    this.legend(this.chosen ?? last);
  }

  curve(name, first, last) {
    const column = this.data[name], runs = [];
    let run = null;
    for (let i = first; i <= last; i++) {
      const value = this.spans ? column[i] ?? 0 : column[i]; // nothing pending: no wait
      if (value === null || value === undefined) { run = null; continue; }
      if (!run) runs.push((run = []));
      run.push(`${this.x(this.data.at[i]).toFixed(1)} ${this.y(value).toFixed(1)}`);
    }
    const base = this.y(0).toFixed(1);
    for (const points of runs) {
      const line = "M" + points.join("L"), begin = points[0].split(" ")[0], end = points[points.length - 1].split(" ")[0];
      if (name === this.names[0]) element("path", { class: `area ${name}`, d: `${line}L${end} ${base}L${begin} ${base}Z` }, this.svg);
      element("path", { class: `curve ${name}`, d: line }, this.svg);
    }
  }

  mark(names) {
    const x = this.x(this.data.at[this.chosen]);
    element("line", { class: "cursor", x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM }, this.svg);
    for (const name of names) {
      const value = this.data[name][this.chosen];
      if (value !== null && value !== undefined) element("circle", { class: `dot ${name}`, cx: x, cy: this.y(value), r: 3.5 }, this.svg);
    }
    const label = element("text", { x, y: HEIGHT - 4, "text-anchor": x > this.plot.clientWidth - 40 ? "end" : x < LEFT + 30 ? "start" : "middle" }, this.svg);
    for (const other of this.svg.querySelectorAll("text[y='" + (HEIGHT - 4) + "']")) if (other !== label) other.remove();
    label.textContent = exactClock(this.data.at[this.chosen]);
  }

  legend(place) {
    const figures = [];
    for (const name of this.names) {
      const text = place >= 0 ? this.format(this.data[name][place]) : "–";
      const shown = this.figure.querySelector(`[data-now="${name}"]`);
      if (shown.textContent !== text) shown.textContent = text;
      if (!this.hidden.has(name)) figures.push(`${name} ${text}`);
    }
    const when = this.chosen === null ? "now" : `at ${exactClock(this.data.at[place])} UTC`;
    this.svg.setAttribute("aria-label", `${this.title} (${this.figure.dataset.unit}), ${when}: ${figures.join(", ")}. Arrow keys move through time.`);
  }

  choose(place) {
    if (this.chosen === place || !this.data) return;
    this.chosen = place;
    this.draw();
  }

  point(event) {
    if (!this.data || !this.x) return;
    const box = this.svg.getBoundingClientRect(), x = event.clientX - box.left;
    const { first, last } = this.visible();
    let best = null, distance = Infinity;
    for (let i = first; i <= last; i++) {
      const apart = Math.abs(this.x(this.data.at[i]) - x);
      if (apart < distance) [best, distance] = [i, apart];
    }
    this.choose(best);
  }

  step(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 };
    if (!this.data || !(event.key in steps)) return;
    event.preventDefault();
    const { first, last } = this.visible();
    const place = (this.chosen ?? last + 1) + steps[event.key];
    this.choose(Math.min(last, Math.max(first, place)));
  }
}

// A line without axes, for a table.
export function spark(cell, values) {
  const known = values.map((value) => value ?? 0), top = Math.max(...known, 0), width = 96, height = 24;
  cell.replaceChildren();
  if (known.length < 2 || top === 0) return;
  const points = known.map((value, i) => `${((i / (known.length - 1)) * width).toFixed(1)} ${(height - 2 - (value / top) * (height - 4)).toFixed(1)}`);
  const svg = element("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `completed per second in the last 15 minutes, at most ${number(top)}` }, cell);
  element("path", { class: "area", d: `M${points.join("L")}L${width} ${height}L0 ${height}Z` }, svg);
  element("path", { d: "M" + points.join("L") }, svg);
}
