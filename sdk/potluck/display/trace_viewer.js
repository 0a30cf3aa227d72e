// An offline viewer of Chrome traces: one page, no other host, every text set as text. Rows are
// threads below their processes; zoom with the wheel, drag, or + and -; arrow keys walk over slices.
const COLOURS = { forward: "#0072b2", backward: "#e69f00", "input gradient": "#e69f00", "weight gradient": "#d55e00",
  step: "#009e73", reduce: "#cc79a7", send: "#56b4e9", receive: "#8c8c8c" };
const ROW = 20, HEAD = 22, LEFT = 190, dark = matchMedia("(prefers-color-scheme: dark)");
const byId = id => document.getElementById(id);
const canvas = byId("trace"), told = byId("told"), g = canvas.getContext("2d");
let rows = [], slices = [], arrows = [], first = 0, last = 1, from = 0, to = 1, pick = -1, drag = null;

const three = v => v === 0 ? "0" : Math.abs(v) >= 100 ? v.toFixed(0) : String(Number(v.toPrecision(3)));
const time = us => us >= 1e6 ? `${three(us / 1e6)} s` : us >= 1e3 ? `${three(us / 1e3)} ms` : `${three(us)} µs`;
const text = value => String(value ?? "").slice(0, 300);

function load(trace) {
  const events = (Array.isArray(trace) ? trace : trace.traceEvents || []).filter(e => e && typeof e === "object");
  const names = new Map(), threads = new Map(), places = new Map(), found = new Map(), began = new Map();
  for (const e of events) {
    const key = `${e.pid}/${e.tid}`;
    if (e.ph === "M" && e.name === "process_name") names.set(e.pid, text((e.args || {}).name));
    if (e.ph === "M" && e.name === "thread_name") threads.set(key, text((e.args || {}).name));
    if (e.ph === "X") found.set(key, [e.pid, e.tid]);
  }
  const order = [...found.values()].sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  rows = []; let before = null;
  for (const [pid, tid] of order) {
    if (pid !== before) rows.push({ name: names.get(pid) || `process ${pid}`, heads: true });
    before = pid;
    places.set(`${pid}/${tid}`, rows.length);
    rows.push({ name: threads.get(`${pid}/${tid}`) || `thread ${tid}` });
  }
  slices = events.filter(e => e.ph === "X" && Number.isFinite(e.ts) && Number.isFinite(e.dur))
    .map(e => ({ ...e, row: places.get(`${e.pid}/${e.tid}`) })).sort((a, b) => a.ts - b.ts);
  arrows = [];
  for (const e of events) {
    if (e.ph === "s") began.set(e.id, e);
    else if (e.ph === "f" && began.has(e.id)) arrows.push([began.get(e.id), e]
      .map(end => ({ ts: end.ts, row: places.get(`${end.pid}/${end.tid}`) })));
  }
  first = slices.length ? slices[0].ts : 0;
  last = slices.reduce((most, e) => Math.max(most, e.ts + e.dur), first + 1);
  from = first; to = last; pick = -1;
  told.textContent = slices.length ? `${slices.length} slices, ${time(last - first)}` : "No slices in this trace.";
  draw();
}

const X = us => LEFT + (us - from) / (to - from) * (canvas.clientWidth - LEFT - 8);
const at = x => from + (x - LEFT) / (canvas.clientWidth - LEFT - 8) * (to - from);

function draw() {
  const ratio = devicePixelRatio || 1, width = canvas.clientWidth, height = HEAD + rows.length * ROW + 6;
  canvas.style.height = `${height}px`; canvas.width = width * ratio; canvas.height = height * ratio;
  g.setTransform(ratio, 0, 0, ratio, 0, 0); g.font = "12px system-ui,sans-serif"; g.textBaseline = "middle";
  const ink = dark.matches ? "#e6edf3" : "#1f2328", line = dark.matches ? "#2c343e" : "#d8dce1";
  g.fillStyle = ink;
  rows.forEach((row, i) => { g.font = row.heads ? "600 12px system-ui,sans-serif" : "12px system-ui,sans-serif";
    g.fillText(row.name, row.heads ? 0 : 14, HEAD + i * ROW + ROW / 2, LEFT - 20); });
  g.font = "11px system-ui,sans-serif";
  const step = 10 ** Math.floor(Math.log10((to - from) / 4)), every = [5, 2, 1].map(n => n * step).find(n => (to - from) / n >= 4);
  for (let t = Math.ceil((from - first) / every) * every + first; t <= to; t += every) {
    g.fillStyle = line; g.fillRect(X(t), HEAD - 4, 1, height); g.fillStyle = ink; g.fillText(time(t - first), X(t) + 3, 9);
  }
  g.save(); g.beginPath(); g.rect(LEFT, HEAD - 2, width, height); g.clip();
  slices.forEach((e, i) => {
    const x = X(e.ts), w = Math.max((e.dur) / (to - from) * (width - LEFT - 8), 1), y = HEAD + e.row * ROW + 2;
    if (x > width || x + w < LEFT) return;
    g.fillStyle = COLOURS[e.cat] || COLOURS.reduce; g.fillRect(x, y, w, ROW - 4);
    if (w > 26) { g.fillStyle = ["backward", "input gradient", "send", "reduce"].includes(e.cat) ? "#111" : "#fff"; g.fillText(text(e.name), Math.max(x, LEFT) + 3, y + 8, w - 4); }
    if (i === pick) { g.strokeStyle = ink; g.lineWidth = 2; g.strokeRect(x, y, w, ROW - 4); }
  });
  g.strokeStyle = ink; g.globalAlpha = .35; g.lineWidth = 1;
  for (const [a, b] of arrows) {
    if (b.ts < from || a.ts > to || a.row === undefined || b.row === undefined) continue;
    g.beginPath(); g.moveTo(X(a.ts), HEAD + a.row * ROW + ROW / 2); g.lineTo(X(b.ts), HEAD + b.row * ROW + ROW / 2); g.stroke();
  }
  g.restore(); g.globalAlpha = 1;
}

function zoom(factor, middle = (from + to) / 2) {
  const wide = Math.min(last - first, Math.max((to - from) * factor, (last - first) / 1e5));
  from = Math.max(first, Math.min(last - wide, middle - (middle - from) / (to - from) * wide)); to = from + wide; draw();
}
function tell(i) {
  const e = slices[i]; pick = i; if (!e) return;
  const more = Object.entries(e.args || {}).filter(([, v]) => v !== "" && typeof v !== "object").map(([k, v]) => `${text(k)} ${text(v)}`);
  const head = rows.slice(0, e.row).reverse().find(row => row.heads);
  told.textContent = [`${text(e.name)} on ${head ? head.name : "?"}, ${rows[e.row].name}`,
    `${(e.dur).toLocaleString("en")} µs from ${time(e.ts - first)}`, ...more].join("; ");
  if (e.ts < from || e.ts + e.dur > to) { const wide = to - from; from = Math.max(first, Math.min(last - wide, e.ts - wide / 3)); to = from + wide; }
  draw();
}
function under(event) {
  const box = canvas.getBoundingClientRect(), us = at(event.clientX - box.left), row = Math.floor((event.clientY - box.top - HEAD) / ROW);
  const near = (to - from) / canvas.clientWidth * 2;
  return slices.findIndex(e => e.row === row && us >= e.ts - near && us <= e.ts + e.dur + near);
}
canvas.addEventListener("wheel", e => { e.preventDefault(); zoom(e.deltaY > 0 ? 1.25 : .8, at(e.clientX - canvas.getBoundingClientRect().left)); }, { passive: false });
canvas.addEventListener("pointerdown", e => { drag = { x: e.clientX, from, to, moved: false }; canvas.setPointerCapture(e.pointerId); });
canvas.addEventListener("pointermove", e => {
  if (!drag) { const i = under(e); canvas.title = i >= 0 ? `${text(slices[i].name)}, ${time(slices[i].dur)}` : ""; return; }
  if (Math.abs(e.clientX - drag.x) < 4 && !drag.moved) return;
  drag.moved = true; const wide = drag.to - drag.from, by = (e.clientX - drag.x) / (canvas.clientWidth - LEFT) * wide;
  from = Math.max(first, Math.min(last - wide, drag.from - by)); to = from + wide; draw();
});
canvas.addEventListener("pointerup", e => { if (drag && !drag.moved) tell(under(e)); drag = null; });
canvas.addEventListener("keydown", e => {
  const acts = { ArrowRight: () => tell(Math.min(slices.length - 1, pick + 1)), ArrowLeft: () => tell(Math.max(0, pick - 1)), "+": () => zoom(.6), "=": () => zoom(.6),
    "-": () => zoom(1.7), Home: () => tell(0), End: () => tell(slices.length - 1), Escape: () => { from = first; to = last; draw(); } };
  if (acts[e.key] && slices.length) { e.preventDefault(); acts[e.key](); }
});
byId("all").addEventListener("click", () => { from = first; to = last; draw(); });
byId("in").addEventListener("click", () => zoom(.6)); byId("out").addEventListener("click", () => zoom(1.7));
byId("file").addEventListener("change", async e => {
  try { load(JSON.parse(await e.target.files[0].text())); } catch { told.textContent = "This file is no Chrome trace."; }
});
addEventListener("resize", draw); dark.addEventListener("change", draw);
load(JSON.parse(byId("data").textContent));
