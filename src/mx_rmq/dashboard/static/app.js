// Live figures and charts, keyboard shortcuts, the theme. Every page also works without JavaScript.

import { Chart, duration, number, spark } from "./charts.js";

const body = document.body, base = body.dataset.base, byId = (id) => document.getElementById(id);
const KEPT = 3600;

// live figures

const charts = [...document.querySelectorAll("[data-chart]")].map((figure) => new Chart(figure));
const live = body.dataset.live; // "*" for all, a topic, or nothing
let columns = null, span = 900, stream = null;

function redraw() {
  for (const chart of charts) chart.show(columns, span);
}

function append(at, point) {
  if (!columns || !point || at <= (columns.at[columns.at.length - 1] ?? 0)) return;
  for (const name of Object.keys(columns)) columns[name].push(name === "at" ? at : point[name]);
  while (columns.at[0] < at - KEPT) for (const name of Object.keys(columns)) columns[name].shift();
  redraw();
}

function write(topic, point) {
  if (!point) return;
  for (const cell of document.querySelectorAll(`[data-figure][data-topic="${CSS.escape(topic)}"]`)) {
    const name = cell.dataset.figure, value = point[name];
    const text = name === "oldest" ? duration(value) : number(value);
    if (cell.textContent !== text) cell.textContent = text;
    const holder = cell.closest("td.num, .tile, .tabs a");
    if (holder && cell.matches("a, b, strong")) holder.classList.toggle("zero", !value);
  }
}

function announce(text) {
  const place = byId("announce");
  if (place.textContent !== text) place.textContent = text;
}

function pulse(state, text) {
  const place = byId("pulse");
  if (!place) return;
  place.className = `pulse ${state}`;
  place.querySelector("span").textContent = text;
}

function away(text) {
  const banner = byId("away");
  banner.hidden = !text;
  if (text && banner.textContent !== text) banner.textContent = text;
}

// Other things need attention now: fetch that part of the page again.
async function fetchAttention() {
  const answer = await fetch(`${base}/`);
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("attention");
  if (fresh) byId("attention")?.replaceWith(document.adoptNode(fresh));
}

let bad = null, fetched = 0;
function onSample(sample) {
  away("");
  pulse("live", `live, ${new Date(sample.at * 1000).toISOString().slice(11, 19)} UTC`);
  for (const [topic, point] of Object.entries(sample.topics)) write(topic, point);
  if (live === "*") {
    write("", sample.all);
    append(sample.at, sample.all);
    const alive = byId("alive");
    if (alive) alive.textContent = number(sample.workers.alive);
    for (const row of document.querySelectorAll("[data-topic-row]")) row.querySelector("[data-paused]").hidden = !sample.paused.includes(row.dataset.topicRow);
    const fresh = byId("new-topics");
    if (fresh) fresh.hidden = sample.count === Number(fresh.dataset.count);
    if (bad !== null && bad !== sample.bad) announce(sample.bad ? `Problems that need attention now: ${sample.bad}` : "Nothing needs attention now");
    bad = sample.bad;
    if (byId("attention")?.dataset.key !== sample.attention && Date.now() - fetched > 1500) {
      fetched = Date.now();
      fetchAttention().catch(() => {});
    }
  } else {
    append(sample.at, sample.topics[live]);
    const chip = document.querySelector("[data-paused-here]");
    if (chip) chip.hidden = !sample.paused.includes(live);
  }
}

function listen() {
  if (stream || document.hidden) return;
  stream = new EventSource(`${base}/live${live === "*" ? location.search : `?topic=${encodeURIComponent(live)}`}`);
  stream.addEventListener("sample", (event) => onSample(JSON.parse(event.data)));
  stream.addEventListener("away", (event) => {
    pulse("lost", "not live");
    away(`The server is unreachable: ${JSON.parse(event.data).text}`);
  });
  stream.addEventListener("again", (event) => {
    stopListening();
    setTimeout(listen, JSON.parse(event.data).after ?? 0);
  });
  stream.addEventListener("error", () => {
    pulse("lost", "not live");
    away("The dashboard is not responding. The figures on this page are out of date.");
    if (stream && stream.readyState === EventSource.CLOSED) {
      stream = null;
      setTimeout(listen, 5000);
    }
  });
}

// A browser has few connections per server: hidden pages give theirs back.
function stopListening() {
  if (stream) stream.close();
  stream = null;
}

async function fetchSeries() {
  if (!charts.length) return;
  const answer = await fetch(`${base}/live/series${live === "*" ? "" : `?topic=${encodeURIComponent(live)}`}`);
  if (!answer.ok) return;
  columns = await answer.json();
  redraw();
}

async function fetchSparks() {
  const cells = [...document.querySelectorAll("[data-spark]")];
  if (!cells.length || document.hidden) return;
  const answer = await fetch(`${base}/live/sparks${location.search}`);
  if (!answer.ok) return;
  const values = await answer.json();
  for (const cell of cells) spark(cell, values[cell.dataset.spark] ?? []);
}

async function begin() {
  try {
    await Promise.all([fetchSeries(), fetchSparks()]);
  } catch {
    // the stream will show that the dashboard is not responding
  }
  listen();
}

if (live) {
  begin();
  setInterval(() => fetchSparks().catch(() => {}), 30000);
  document.addEventListener("visibilitychange", () => (document.hidden ? stopListening() : begin()));
  addEventListener("pagehide", stopListening);
  addEventListener("pageshow", (event) => event.persisted && begin()); // back from the browser's cache
}

const spans = byId("spans");
if (spans) {
  spans.hidden = false;
  const kept = sessionStorage.getItem("mx-rmq span");
  for (const input of spans.querySelectorAll("input")) {
    if (input.value === kept) input.checked = true;
    if (input.checked) span = Number(input.value);
    input.addEventListener("change", () => {
      span = Number(input.value);
      sessionStorage.setItem("mx-rmq span", input.value);
      if (columns) redraw();
    });
  }
}

// A part of a page that is fetched again every few seconds, unless the user is working in it.
const again = document.querySelector("[data-again]");
if (again) {
  setInterval(async () => {
    const here = document.querySelector("[data-again]");
    if (document.hidden || here.contains(document.activeElement) || !getSelection().isCollapsed) return;
    const answer = await fetch(location.href).catch(() => null);
    if (!answer?.ok) return away("The dashboard is not responding. The figures on this page are out of date.");
    away("");
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("[data-again]");
    if (fresh) here.replaceWith(document.adoptNode(fresh));
  }, again.dataset.again * 1000);
}

// how long ago

function ago(at) {
  const apart = Date.now() / 1000 - at;
  if (Math.abs(apart) < 1) return "now";
  return apart > 0 ? `${duration(apart)} ago` : `in ${duration(-apart)}`;
}

setInterval(() => {
  for (const place of document.querySelectorAll("[data-ago]")) place.textContent = ago(Number(place.dataset.ago));
}, 10000);

// the theme

const themes = ["", "light", "dark"], themeNames = { "": "Auto", light: "Light", dark: "Dark" };
const themeButton = byId("theme");

function showTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  themeButton.querySelector("span").textContent = themeNames[theme];
  themeButton.setAttribute("aria-label", `Theme: ${themeNames[theme]}. Change`);
}

function changeTheme() {
  const theme = themes[(themes.indexOf(document.documentElement.dataset.theme ?? "") + 1) % themes.length];
  document.cookie = `mx_rmq_theme=${theme}; path=/; max-age=${theme ? 31536000 : 0}; SameSite=Lax`;
  showTheme(theme);
}

themeButton.hidden = false;
themeButton.addEventListener("click", changeTheme);
showTheme(document.documentElement.dataset.theme ?? "");

// keys

const help = byId("help"), keysOff = byId("keys-off");
keysOff.checked = localStorage.getItem("mx-rmq keys") === "off";
keysOff.addEventListener("change", () => localStorage.setItem("mx-rmq keys", keysOff.checked ? "off" : "on"));
byId("help-link").addEventListener("click", (event) => {
  event.preventDefault();
  help.showModal();
});

let leader = 0;
const places = { o: "/", d: "/dead", q: "/quarantine", w: "/workers", l: "/log" };

function follow(selector) {
  document.querySelector(selector)?.click();
}

function move(step) {
  const rows = [...document.querySelectorAll("[data-row]")];
  if (!rows.length) return;
  const now = rows.indexOf(document.activeElement);
  const next = now < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, now + step));
  rows[next].focus();
  rows[next].scrollIntoView({ block: "nearest" });
}

const keys = {
  "?": () => help.showModal(),
  "/": () => (document.querySelector("[data-search]") ?? byId("find"))?.focus(),
  f: () => byId("find")?.focus(),
  j: () => move(1),
  k: () => move(-1),
  n: () => follow("[data-next]"),
  p: () => follow("[data-first]"),
  t: changeTheme,
  g: () => (leader = Date.now()),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const inField = event.target.closest("input, textarea, select, [contenteditable]");
  if (event.key === "Escape" && inField) return event.target.blur();
  if (inField || help.open || keysOff.checked) return;
  if (Date.now() - leader < 1500 && event.key in places) {
    leader = 0;
    event.preventDefault();
    location.assign(base + places[event.key]);
  } else if (event.key in keys) {
    event.preventDefault();
    keys[event.key]();
  }
});

// JSON, coloured: text nodes and spans only, so that nothing in a payload can become markup

const token = /("(?:[^"\\]|\\[^]?)*(?:"|$))(\s*:)?|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|\b(?:true|false|null)\b/g; // no backtracking, so that no payload can make it slow
for (const code of document.querySelectorAll("pre[data-json] code")) {
  const text = code.textContent, parts = document.createDocumentFragment();
  let end = 0;
  for (const found of text.matchAll(token)) {
    parts.append(text.slice(end, found.index));
    const piece = document.createElement("span");
    piece.className = found[2] !== undefined ? "json-key" : found[1] !== undefined ? "json-text" : /^[tfn]/.test(found[0]) ? "json-word" : "json-number";
    piece.textContent = found[1] ?? found[0];
    parts.append(piece, found[2] ?? "");
    end = found.index + found[0].length;
  }
  parts.append(text.slice(end));
  code.replaceChildren(parts);
}

const editor = document.querySelector("[data-json-check]");
if (editor) {
  const hint = byId("json-hint");
  const check = () => {
    try {
      JSON.parse(editor.value);
      editor.removeAttribute("aria-invalid");
      hint.textContent = "";
    } catch (error) {
      editor.setAttribute("aria-invalid", "true");
      hint.textContent = `Not JSON yet: ${error.message}`;
    }
  };
  editor.addEventListener("input", check);
}
