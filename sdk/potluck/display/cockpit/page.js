// The cockpit's page: takes frames, draws a home, and says what was clicked. `frames.py` tells the form
// of a frame. One module for notebooks (anywidget) and for `potluck watch`; it asks no other host for
// anything, and every text of others is set as text.

const KINDS = ["forward", "backward", "input gradient", "weight gradient", "optimizer step",
  "all-reduce and tensor work", "send", "receive"];
const MARKS = { joined: "+", lost: "×", left: "−", switched: "⇄", ordered: "↕", decided: "·", effect: "≈",
  failed: "!", paired: "∞", run: "▶", said: "·" };
const MOST = { words: 8000, events: 10000, tasks: 6000, predicted: 6000, losses: 4000, watts: 6000 };
const STEPS = 3, SLOW_MS = 400, CHART_MS = 1000, EVENTS_SHOWN = 100, STALE_S = 10;

const CSS = `
:host{all:initial;display:block}
.c{--ink:#1f2328;--paper:#fff;--soft:#f5f6f8;--line:#d8dce1;--mute:#5d6673;--blue:#0072b2;--orange:#e69f00;
--green:#009e73;--sky:#56b4e9;--red:#d55e00;--purple:#b3588f;--grey:#8c8c8c;color:var(--ink);background:var(--paper);
border:1px solid var(--line);border-radius:12px;font:13px/1.4 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;
container-type:inline-size;overflow:hidden;font-variant-numeric:tabular-nums}
.c.dark{--ink:#e6edf3;--paper:#0f141a;--soft:#171d25;--line:#2c343e;--mute:#97a3b0;--blue:#3d9bd6;--orange:#f0b429;
--green:#1fbf92;--red:#f0793a;--purple:#d98fbd;--grey:#7d8590}
.c *{box-sizing:border-box}
header{display:flex;flex-wrap:wrap;gap:4px 22px;align-items:center;padding:10px 16px;
background:var(--soft)}
header .who{font-weight:650;font-size:14px;display:flex;gap:8px;align-items:center;min-width:0}
.dot{width:9px;height:9px;border-radius:50%;background:var(--grey);flex:none}
.dot.on{background:var(--green);box-shadow:0 0 0 3px color-mix(in srgb,var(--green) 25%,transparent)}
header .said{color:var(--mute);font-weight:400}
.tiles{display:flex;gap:20px;margin-left:auto;flex-wrap:wrap}
.tile b{display:block;font-size:17px;font-weight:620;line-height:1.15}
.note{padding:3px 16px;min-height:26px;color:var(--mute)}
.note.busy,.note.bad{background:color-mix(in srgb,var(--orange) 16%,var(--paper));color:var(--ink)}
.note.busy::before{content:"";display:inline-block;width:9px;height:9px;margin-right:8px;border-radius:50%;
border:2px solid var(--orange);border-right-color:transparent;animation:turn 1s linear infinite}
@keyframes turn{to{transform:rotate(1turn)}}
@media(prefers-reduced-motion:reduce){.note.busy::before{animation:none}}
header,section{contain:layout paint style}
header,section,.note{border-bottom:1px solid var(--line)}
.tile span,.card small,.pre th,.keys{font-size:11px;color:var(--mute)}
.note,.bus,.card p,.limits,.tip,.detail,ol li{font-size:12px}
main{display:grid;grid-template-columns:minmax(0,7fr) minmax(0,5fr)}
section{padding:12px 16px 14px;min-width:0}
section+section{border-left:1px solid var(--line)}
.wide{grid-column:1/-1;border-left:0!important}
.low{grid-column:1/-1;display:grid;grid-template-columns:1fr 1fr 1.25fr;border-left:0!important;padding:0}
.low>section{border-bottom:0}
h2{font-size:11px;letter-spacing:.06em;text-transform:uppercase;color:var(--mute);font-weight:650;margin:0 0 8px;
display:flex;gap:8px;align-items:center;flex-wrap:wrap}
h2 .more{margin-left:auto;text-transform:none;letter-spacing:0;font-weight:400;display:flex;gap:6px;align-items:center}
button,select,input{font:inherit;color:inherit}
button,select{border:1px solid var(--line);background:var(--paper);border-radius:7px;padding:2px 9px;cursor:pointer;color:var(--ink)}
button:hover{border-color:var(--mute)}button.go{background:var(--blue);border-color:var(--blue);color:#fff;font-weight:600;padding:5px 14px}
.dark button.go{color:#06131d}
button[aria-pressed=true]{background:color-mix(in srgb,var(--blue) 18%,var(--paper));border-color:var(--blue)}
button:disabled{opacity:.5;cursor:default}
:focus-visible{outline:2px solid var(--blue);outline-offset:2px}
input[type=text]{border:1px solid var(--line);border-radius:7px;padding:2px 8px;background:var(--paper);width:92px}
input[type=range]{accent-color:var(--blue);width:100%;min-width:60px;height:18px;margin:0}
.name{unicode-bidi:isolate;overflow:hidden;text-overflow:ellipsis;white-space:nowrap;font-weight:620}
.buses{max-height:560px;overflow:auto;padding:3px;margin:-3px}
.bus{display:grid;grid-template-columns:auto minmax(60px,1fr) auto;gap:10px;align-items:center;margin:2px 0 0}
.rail{height:8px;border-radius:4px;background:color-mix(in srgb,var(--ink) 10%,transparent);overflow:hidden;position:relative}
.rail i{display:block;height:100%;width:0;border-radius:4px;
background:repeating-linear-gradient(115deg,var(--red) 0 5px,color-mix(in srgb,var(--red) 65%,var(--paper)) 5px 8px)}
.bus .if{white-space:nowrap;grid-column:1/-1;display:flex;gap:10px;align-items:center}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(158px,1fr));gap:10px;margin:0 0 14px;padding:9px 0 0}
.card{border:1px solid var(--line);border-radius:9px;padding:8px 10px 9px;position:relative;background:var(--paper);min-width:0}
.card::before{content:"";position:absolute;left:18px;top:-10px;height:9px;border-left:2px solid var(--line)}
.card.lit{border-color:var(--blue);box-shadow:inset 3px 0 0 var(--blue)}
.card.gone{background:var(--soft);color:var(--mute);border-style:dashed}
.card.away{opacity:.55;border-style:dotted}
.card .top{display:flex;gap:7px;align-items:center}
.card .top button{margin-left:auto;padding:0 7px}
.card p{margin:2px 0 0;color:var(--mute);overflow-wrap:anywhere}
.card small span+span{white-space:nowrap}
.card small{display:flex;justify-content:space-between;gap:6px}
.strip{position:relative;height:9px;margin:7px 0 1px;border-radius:3px;background:color-mix(in srgb,var(--ink) 7%,transparent);overflow:hidden}
.strip i{position:absolute;top:0;bottom:0;background:var(--blue);border-radius:2px;min-width:2px}
.mem{height:5px;margin:5px 0 1px;border-radius:3px;background:color-mix(in srgb,var(--ink) 10%,transparent);overflow:hidden}
.mem i{display:block;height:100%;background:var(--purple);width:0}.mem i.over{background:var(--red)}
.watt{color:var(--ink)}.est{font-style:italic}
svg{display:block;width:100%;height:auto;overflow:visible}
svg line{stroke:var(--line)}polyline{fill:none}
svg text{fill:var(--mute);font-size:11px}
.pt{cursor:pointer}.pt:focus{outline:none}.pt:focus .halo,.pt:hover .halo{stroke:var(--ink)}
.halo{fill:transparent;stroke:transparent;stroke-width:1.5}
.dim{opacity:.28}
.limits{display:grid;grid-template-columns:auto minmax(0,1fr) 72px;gap:3px 10px;align-items:center;margin-top:8px}
.limits output{text-align:right;color:var(--mute)}
.pre{overflow-wrap:anywhere;margin-top:10px;border:1px solid var(--blue);border-radius:9px;padding:9px 12px;background:color-mix(in srgb,var(--blue) 6%,var(--paper))}
.pre table{border-collapse:collapse;width:100%;margin:6px 0}.pre td,.pre th{text-align:left;padding:1px 10px 1px 0;font-weight:400;vertical-align:top}
.pre .acts{display:flex;gap:8px;align-items:center;margin-top:6px;flex-wrap:wrap}
canvas{display:block;width:100%;border-radius:6px;cursor:crosshair}
.tip{position:absolute;z-index:3;pointer-events:none;background:var(--ink);color:var(--paper);border-radius:7px;padding:4px 9px;
max-width:300px;white-space:pre-line;opacity:0;transition:opacity .08s}
.tip.on{opacity:1}
.stream{position:relative;max-height:420px;overflow:auto}
.keys{display:flex;flex-wrap:wrap;gap:3px 14px;margin-top:7px}
.keys span{max-width:100%;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.keys i{display:inline-block;width:14px;height:10px;border-radius:2px;margin-right:5px;vertical-align:-1px}
.detail{margin-top:6px;min-height:18px}
ol{list-style:none;margin:0;padding:0;max-height:214px;overflow:auto}
ol li{display:grid;grid-template-columns:18px 44px minmax(0,1fr);gap:4px;padding:2px 0;border-bottom:1px solid color-mix(in srgb,var(--line) 55%,transparent)}
ol li span:last-child{overflow-wrap:anywhere;unicode-bidi:isolate}
ol time{color:var(--mute)}ol b{text-align:center;color:var(--blue);font-weight:700}
ol .lost b,ol .failed b{color:var(--red)}ol .joined b,ol .paired b{color:var(--green)}
.none{color:var(--mute);margin:6px 0}
@container (max-width:900px){main,.low{grid-template-columns:minmax(0,1fr)}section+section{border-left:0}
.low>section{border-bottom:1px solid var(--line)}}
@container (max-width:560px){.tiles{margin-left:0;gap:14px}section{padding:10px 12px}
.cards{grid-template-columns:repeat(auto-fill,minmax(132px,1fr))}header{padding:9px 12px}svg[role=group] text{font-size:14px}}
`;

// --- frames ---

const utf8 = new TextDecoder();

function merge(target, patch) {  // RFC 7386, into objects without a prototype: names are anybody's
  for (const key of Object.keys(patch)) {
    const value = patch[key];
    if (value === null) delete target[key];
    else if (typeof value === "object" && !Array.isArray(value)) {
      const inner = target[key], is = inner && typeof inner === "object" && !Array.isArray(inner);
      target[key] = merge(is ? inner : Object.create(null), value);
    } else target[key] = value;
  }
  return target;
}

class Log {  // the latest items of a stream, by number
  constructor(most) { this.most = most; this.items = []; this.start = 0; }
  get end() { return this.start + this.items.length; }
  add(start, items) {
    if (start > this.end || start + items.length < this.start) { this.items = []; this.start = start; }
    for (let i = Math.max(0, this.end - start); i < items.length; i++) this.items.push(items[i]);
    const over = this.items.length - this.most;
    if (over > this.most / 4) { this.items.splice(0, over); this.start += over; }
  }
  at(number) { return this.items[number - this.start]; }
}

class Store {
  constructor() { this.n = 0; this.clear(); this.frames = 0; this.bytes = 0; }
  clear() {
    this.s = Object.create(null);
    this.logs = Object.fromEntries(Object.entries(MOST).map(([name, most]) => [name, new Log(most)]));
  }
  take(view) {  // the sections and logs that are new; null where an earlier frame is missing
    const bytes = new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
    const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
    const head = JSON.parse(utf8.decode(bytes.subarray(4, 4 + length)));
    this.frames++; this.bytes += bytes.length;
    const whole = head.on === 0;
    if (!whole && head.on !== this.n) return null;
    this.n = head.n;
    const fresh = new Set(Object.keys(head.set)), before = this.s;
    if (whole) this.s = Object.create(null);
    merge(this.s, head.set);
    if (whole) for (const name of fresh)  // most of it is known
      if (JSON.stringify(before[name]) === JSON.stringify(this.s[name])) fresh.delete(name);
    for (const [name, [start, items]] of Object.entries(head.texts)) {
      const log = this.logs[name], end = log.end;
      if (whole && start > end) log.start = start, log.items = [];
      log.add(start, items);
      if (log.end !== end) fresh.add(name);
    }
    const figures = new Float32Array(bytes.slice(4 + length).buffer);
    let at = 0;
    for (const [name, width, start, count] of head.rows) {
      if (!(width * count <= figures.length)) throw 0;
      const rows = [];
      for (let i = 0; i < count; i++, at += width) rows.push(figures.subarray(at, at + width).slice());
      const log = this.logs[name], end = log.end;
      log.add(start, rows);
      if (log.end !== end) fresh.add(name);
    }
    return fresh;
  }
}

// --- words ---

const three = v => v === 0 ? "0" : Math.abs(v) >= 100 ? v.toFixed(0) : Number(v.toPrecision(3)).toString();
const secs = s => s === undefined ? "?" : s >= 120 ? `${three(s / 60)} min` : s >= 1 ? `${three(s)} s`
  : s >= 1e-3 ? `${three(s * 1e3)} ms` : `${three(s * 1e6)} µs`;
const scaled = (v, unit) => v >= 1e9 ? `${three(v / 1e9)} G${unit}` : v >= 1e6 ? `${three(v / 1e6)} M${unit}`
  : v >= 1e3 ? `${three(v / 1e3)} k${unit}` : `${three(v)} ${unit}`;
const size = b => b >= 2 ** 30 ? `${three(b / 2 ** 30)} GiB` : b >= 2 ** 20 ? `${three(b / 2 ** 20)} MiB`
  : b >= 1024 ? `${three(b / 1024)} KiB` : `${three(b)} B`;
const rate = b => scaled(b * 8, "bit/s");
const energy = p => joules(p.j) + (p.mark ? ` ${p.mark}` : "");
const joules = j => j === undefined ? "?" : j >= 1e3 ? `${three(j / 1e3)} kJ` : j >= 1 ? `${three(j)} J` : `${three(j * 1e3)} mJ`;
const percent = f => `${Math.round(100 * f)} %`;
const clock = s => s < 60 ? `${Math.floor(s)} s` : s < 3600 ? `${Math.floor(s / 60)}:${String(Math.floor(s % 60)).padStart(2, "0")}`
  : `${Math.floor(s / 3600)} h ${Math.floor(s / 60) % 60}`;
const span_of = (a, b) => b - a > 1 ? `${a}–${b - 1}` : `${a}`;  // of layers
const ordered = things => Object.entries(things || {}).sort((a, b) => a[1].at - b[1].at);

// --- elements ---

const NS = "http://www.w3.org/2000/svg";
function el(tag, props = {}, ...children) {
  const made = document.createElement(tag);
  set(made, props);
  made.append(...children.filter(c => c !== null && c !== undefined));
  return made;
}
const div = (name, ...children) => el("div", { class: name }, ...children);
const span = (name, ...children) => el("span", { class: name }, ...children);
function sv(tag, props = {}, ...children) {
  const made = document.createElementNS(NS, tag);
  set(made, props);
  made.append(...children);
  return made;
}
function set(node, props) {
  for (const [key, value] of Object.entries(props)) {
    const name = key === "label" ? "aria-label" : key;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value === undefined || value === false && !name.startsWith("aria")) node.removeAttribute(key);
    else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
  }
  return node;
}
function show(node, is) { node.style.display = is ? "" : "none"; }
function say(node, text) {  // words of the same text node: cheaper to lay out than another one
  const first = node.firstChild;
  if (node.textContent === text) return;
  if (text && first && first.data) first.data = text; else node.textContent = text;
}
function cut(g, text, wide) {  // a long name
  const c = [...text], n = c.length, told = () => c.join("") + (c.length < n ? "…" : "");
  c.length = Math.min(n, 40);
  while (c.length && g.measureText(told()).width > wide) c.pop();
  return told();
}
function kept(parent, cache, entries, make, update) {  // elements by key, updated in place
  const seen = new Set();
  let before = null;
  for (const [key, value] of entries) {
    seen.add(key);
    let node = cache.get(key);
    if (!node) cache.set(key, node = make(key, value));
    update(node, value, key);
    const next = before ? before.nextSibling : parent.firstChild;
    if (next !== node) parent.insertBefore(node, next);
    before = node;
  }
  for (const [key, node] of cache) if (!seen.has(key)) { node.remove(); cache.delete(key); }
}

// --- the page ---

class Page {
  constructor(model, host, act) {
    this.model = model; this.act = act;
    this.store = new Store(); this.fresh = new Set(); this.n = 0; this.waiting = new Map();
    this.root = host.attachShadow({ mode: "open" });
    this.root.append(el("style", {}, CSS));
    this.c = el("div", { class: "c potluck-cockpit", role: "region", label: "potluck cockpit" });
    this.root.append(this.c);
    this.cards = new Map(); this.busRows = new Map(); this.points = new Map(); this.rows = new Map();
    this.zoom = { from: 0, to: 1 }; this.asked = ""; this.limits = {}; this.bounds = {};
    this.if = { on: false, media: {}, without: [], added: [] };
    this.build(); this.theme(); this.draw();
    this.timers = [setInterval(() => this.theme(), 1000), setInterval(() => this.late(), 100)];
    this.seen = true;
    this.watch = new IntersectionObserver(found => { this.seen = found[0].isIntersecting; if (this.seen) this.later(); });
    this.watch.observe(this.c);
    this.sized = new ResizeObserver(() => { this.room = this.stream.clientWidth; this.fresh.add("tasks"); this.later(); });
    this.sized.observe(this.stream);
  }

  end() { this.timers.forEach(clearInterval); this.watch.disconnect(); this.sized.disconnect(); }

  ask(content, words) {  // tell the kernel; what is not heard soon is said to be queued
    const number = ++this.n;
    if (words) this.waiting.set(number, { words, at: performance.now() });
    this.act({ ...content, number });
    this.late();
  }

  heard(number, words) {
    this.waiting.delete(number);
    if (words) this.complain(words);
    this.late();
  }

  complain(words) {
    this.error = words;
    clearTimeout(this.erring);
    this.erring = setTimeout(() => { this.error = ""; this.late(); }, 8000);
  }

  late() {
    const now = performance.now();
    let text = this.error || this.worked || "", busy = !this.error && !!this.worked;
    for (const { words, at } of this.waiting.values()) {
      busy = true;
      text = now - at < SLOW_MS ? `${words} …` : `${words}: queued, a cell is running; it is done when the cell has ended.`;
    }
    const shut = this.store.s.home?.closed;
    if (!text && (shut || this.heard_at && now - this.heard_at > 7000)) {
      text = `The ${shut ? "home is closed" : "kernel is silent"}: this is what was seen last.`; this.dot.classList.remove("on");
    }
    text ||= this.store.n ? this.readonly || "Live. Click a plan to see what it would do, again to go over to it." : "Waiting for the kernel.";
    if (this.queued === text) return;
    this.queued = text; say(this.note, text);
    this.note.className = busy ? "note busy" : this.error ? "note bad" : "note";
  }

  lost(why) { console.error(why); this.store.n = -1; }  // asks anew

  frame(view) {
    this.heard_at = performance.now();
    let fresh;
    try { fresh = this.store.take(view); } catch (e) { this.lost(e); }
    if (!fresh) return;
    fresh.forEach(name => this.fresh.add(name));
    this.later();
  }

  later() {
    if (this.due || !this.seen) return;
    this.due = true;
    requestAnimationFrame(() => { this.due = false; try { this.draw(); } catch (e) { this.lost(e); } });
  }

  theme() {
    let node = this.root.host, dark = matchMedia("(prefers-color-scheme: dark)").matches;
    while (node) {
      const found = getComputedStyle(node).backgroundColor.match(/[\d.]+/g);
      if (found && (found.length < 4 || +found[3] > 0.5)) { dark = .3 * found[0] + .59 * found[1] + .11 * found[2] < 128; break; }
      node = node.parentElement || (node.getRootNode() instanceof ShadowRoot ? node.getRootNode().host : null);
    }
    if (dark !== this.dark) {
      this.dark = dark;
      this.c.classList.toggle("dark", dark);
      ["tasks", "losses", "watts"].forEach(name => this.fresh.add(name));
      this.later();
    }
  }

  build() {
    const head = (title, ...more) => el("h2", {}, title, span("more", ...more));
    this.dot = span("dot"); this.who = el("span", {}); this.doing = span("said");
    this.tiles = div("tiles");
    this.tile = {};
    for (const [name, label] of [["step", "a step"], ["rows", "rows a second"], ["loss", "loss"], ["watts", "power"]]) {
      const b = el("b", {}, "–"), words = el("span", {}, label);
      this.tile[name] = { b, words };
      this.tiles.append(div("tile", b, words));
    }
    this.note = el("div", { class: "note", role: "status", "aria-live": "polite" });
    this.buses = div("buses");
    this.ifButton = el("button", { "aria-pressed": "false", onclick: () => this.toggleIf(),
      title: "Imagine another home: plans follow, nothing changes" }, "what if …");
    this.ifWords = el("div", { class: "detail", role: "status" });
    this.adder = el("select", { label: "add a device of the library", hidden: true, onchange: e => {
      if (e.target.value) { this.if.added.push(e.target.value); e.target.value = ""; this.imagine(); } } });
    this.svg = sv("svg", { viewBox: "0 0 460 250", role: "group", label: "plans by time and energy" });
    this.svg.append(sv("g"), sv("g"), sv("g"), sv("g"));
    this.planNote = el("p", { class: "none" });
    this.sliders = div("limits");
    this.slide = {};
    for (const [name, label, told] of [["latency_s", "time", secs], ["energy_j", "joules", joules], ["memory_bytes", "memory", size]]) {
      const input = el("input", { type: "range", min: 0, max: 1000, value: 1000, label: `most ${label} of a step` });
      const output = el("output", {}, "any");
      set(input, { oninput: () => this.limit(name, input, output, told) });
      this.slide[name] = { input, output, told };
      this.sliders.append(el("span", {}, `${label} ≤`), input, output);
    }
    this.pre = el("div", { class: "pre", hidden: true, role: "group", label: "the plan that was clicked on" });
    this.effect = div("detail");
    this.canvas = el("canvas", { tabindex: 0, role: "img", label: "task stream of the last steps" });
    this.tip = div("tip");
    this.stream = div("stream", this.canvas);
    this.detail = el("div", { class: "detail", role: "status", "aria-live": "polite" });
    const tool = (label, title, act) => el("button", { title, label: title, onclick: act }, label);
    this.keys = div("keys");
    this.wattSvg = sv("svg", { viewBox: "0 0 380 200", role: "img" });
    this.wattKeys = div("keys");
    this.lossSvg = sv("svg", { viewBox: "0 0 380 200", role: "img" });
    this.lossNote = div("keys");
    this.list = el("ol", { label: "events, newest first", tabindex: 0 });
    this.older = el("button", { hidden: true, onclick: () => { this.shown = (this.shown || EVENTS_SHOWN) + EVENTS_SHOWN; this.events(); } }, "older …");
    this.c.append(
      el("header", {}, div("who", this.dot, this.who, this.doing), this.tiles),
      this.note,
      el("main", {},
        el("section", { label: "devices and media" }, head("home", this.adder, this.ifButton), this.buses, this.ifWords),
        el("section", { label: "plans" }, head("plans"), this.svg, this.planNote, this.sliders, this.pre, this.effect),
        el("section", { class: "wide", label: "task stream" },
          head("task stream", tool("−", "zoom out", () => this.zoomBy(1.6)), tool("+", "zoom in", () => this.zoomBy(1 / 1.6)),
            tool("all", "show all", () => this.zoomTo(0, 1))), el("div", { style: "position:relative" }, this.stream, this.tip), this.keys, this.detail),
        div("low",
          el("section", { label: "power" }, head("power"), this.wattSvg, this.wattKeys),
          el("section", { label: "loss" }, head("loss"), this.lossSvg, this.lossNote),
          el("section", { label: "events" }, head("events", this.older), this.list))));
    this.listen();
  }

  // --- header ---

  draw() {
    const f = this.fresh, s = this.store.s, any = (...names) => names.some(name => f.has(name));
    this.adopt(f, s);
    if (any("home", "run", "losses", "watts", "devices", "work", "said") || !this.drawn) this.header(s);
    if (any("devices", "media", "ports", "run", "imagined", "kinds", "home")) this.home(s);
    if (any("plans", "imagined_plans", "limits", "no_plan", "preview") || !this.drawn) this.plans(s);
    if (any("preview", "run")) this.preview(s);
    if (f.has("effects")) this.effects(s);
    if (any("tasks", "predicted", "outline", "began") || !this.drawn) this.tasks();
    if (f.has("events")) this.events();
    if (any("losses", "began", "watts")) {  // charts at once, and again when some time has gone
      if (this.charting) this.undrawn = true;
      else {
        this.power(); this.loss();
        this.charting = setTimeout(() => { this.charting = 0; if (this.undrawn) { this.undrawn = false; f.add("losses"); this.later(); } }, CHART_MS);
      }
    }
    f.clear();
    this.drawn = true;
  }

  adopt(f, s) {  // what another page has set
    if (this.waiting.size || this.ifTimer || this.limitTimer) return;
    if (f.has("imagined")) {
      const { media, without, added } = s.imagined;
      this.if = { on: this.if.on, media: { ...media }, without: [...without], added: [...added] };
      set(this.ifButton, { "aria-pressed": this.if.on ||= this.changed });
    }
    if (f.has("limits")) this.limits = { ...s.limits }, this.slid = false;
  }

  header(s) {
    const run = s.run?.state ? s.run : null, n = s.home?.n || 0;
    say(this.who, run ? run.model : n ? `${n} device${n > 1 ? "s" : ""}` : "home");
    const noun = run ? run.noun : "step";
    const state = s.home?.closed ? s.home.given || "the home is closed" : !run ? "nothing runs"
      : run.state === "ended" ? `ended: ${run.ended}` : `${run.state}, ${noun} ${run.n_done}, plan by ${run.planner}`;
    say(this.doing, state);
    this.dot.classList.toggle("on", run?.state === "training" && !s.home.closed);
    const t = this.tile;
    say(t.step.b, run?.step_s ? secs(run.step_s) : "–");
    say(t.step.words, `a ${noun}${run?.predicted_s ? `, predicted ${secs(run.predicted_s)}` : ""}`);
    say(t.rows.b, run?.step_s ? three(run.batch / run.step_s) : "–");
    const last = this.losses().pop();
    say(t.loss.b, last ? `${Number(last[1].toPrecision(4))}` : "–");
    const read = Object.values(s.devices || {}).filter(d => d.watts !== undefined && d.status === "ready");
    say(t.watts.b, read.length ? `${three(read.reduce((sum, d) => sum + d.watts, 0))} W` : "–");
    say(t.watts.words, read.some(d => d.estimated) ? "power, estimated" : "power");
    const work = Object.values(s.work || {}).map(w => w.words + (w.frac === undefined ? "" : ` ${percent(w.frac)}`));
    this.worked = work.join("; ");
    if (s.said && s.said.n !== this.told_n) { this.told_n = s.said.n; this.complain(s.said.words); }
    this.late();
  }

  // --- devices and media ---

  toggleIf() {
    this.if.on = !this.if.on;
    set(this.ifButton, { "aria-pressed": this.if.on });
    if (!this.if.on) { this.if = { on: false, media: {}, without: [], added: [] }; this.imagine(); }
    this.home(this.store.s);
  }

  get changed() {
    const { media, without, added } = this.if;
    return Object.keys(media).length + without.length + added.length > 0;
  }

  imagine() {
    const { media, without, added } = this.if;
    this.ask({ ask: "imagine", media, without, added }, "imagining that home");
    this.home(this.store.s);
  }

  home(s) {
    const devices = ordered(s.devices), media = ordered(s.media), placed = new Set();
    const groups = media.map(([name, m]) => [name, { ...m, inside: m.devices.filter(d => !placed.has(d) && placed.add(d)) }]);
    const rest = devices.map(([name]) => name).filter(name => !placed.has(name));
    if (rest.length || !groups.length) groups.push(["", { shown: groups.length ? "others" : "", rate: 0, load: 0, inside: rest }]);
    this.adder.hidden = !this.if.on;
    const kinds = s.kinds?.names || [];
    if (this.adder.length !== kinds.length + 1) this.adder.replaceChildren(el("option", { value: "" }, "add a device …"),
      ...kinds.map(name => el("option", { value: name }, name)));
    kept(this.buses, this.busRows, groups, () => {
      const row = el("div", {});
      row.bus = div("bus");
      row.label = span("name"); row.fill = el("i"); row.told = el("span", {});
      row.rail = el("div", { class: "rail", role: "meter", "aria-valuemin": 0, "aria-valuemax": 100 }, row.fill);
      row.bus.append(row.label, row.rail, row.told);
      row.input = el("input", { type: "range", min: -300, max: 300, value: 0 });
      row.ifTold = el("output", {});
      row.if = div("if", el("span", {}, "what if"), row.input, row.ifTold);
      row.bus.append(row.if); row.cards = el("div", { class: "cards", role: "list" }); row.cache = new Map();
      row.append(row.bus, row.cards);
      return row;
    }, (row, m, name) => {
      show(row.bus, m.shown);
      say(row.label, m.shown || "");
      row.rail.style.visibility = m.rate ? "" : "hidden";
      row.fill.style.width = percent(m.load || 0);
      set(row.rail, { "aria-valuenow": Math.round(100 * (m.load || 0)), label: `load of ${m.shown}` });
      say(row.told, m.rate ? `${rate(m.rate)}, ${percent(m.load)} full` : "");
      show(row.if, this.if.on && m.rate);
      const wish = this.if.media[name];
      say(row.ifTold, rate(wish || m.rate));
      row.input.oninput = () => {
        const step = +row.input.value;
        if (Math.abs(step) < 8) delete this.if.media[name]; else this.if.media[name] = m.rate * 10 ** (step / 150);
        say(row.ifTold, rate(this.if.media[name] || m.rate));
        clearTimeout(this.ifTimer);
        this.ifTimer = setTimeout(() => { this.ifTimer = 0; this.imagine(); }, 150);
      };
      set(row.input, { label: `what if ${m.shown} carried` });
      if (row.input !== this.root.activeElement) row.input.value = wish ? 150 * Math.log10(wish / m.rate) : 0;
      kept(row.cards, row.cache, m.inside.filter(d => s.devices[d]).map(d => [d, s.devices[d]]), key => this.card(key),
        (card, d, key) => this.device(card, d, key, s));
    });
    const t = this.if, said = s.imagined?.words || "";
    say(this.ifWords, !t.on ? "" : !this.changed ? "Drag a medium, take a device away or add one: the hollow plans are those of that home."
      : [t.without.length ? `without ${t.without.map(d => this.named(d)).join(", ")}` : "",
        t.added.length ? `with ${t.added.join(", ")}` : "", said].filter(Boolean).join("; "));
    if (!devices.length) say(this.ifWords, "Nobody is in this home yet.");
  }

  card(name) {
    const c = el("div", { class: "card", role: "listitem", tabindex: -1 });
    c.dot = span("dot"); c.label = el("span", { class: "name", dir: "auto" });
    c.x = el("button", { hidden: true, onclick: () => {
      const out = this.if.without, at = out.indexOf(name);
      at < 0 ? out.push(name) : out.splice(at, 1); this.imagine(); } }, "×");
    c.trouble = el("p", {});
    c.strip = div("strip"); c.mem = el("i"); c.bar = div("mem", c.mem);
    c.lay = el("small", {}); c.left = el("span"); c.right = el("span"); c.memory = el("small", {}, c.left, c.right);
    c.watt = span("watt"); c.port = el("span"); c.power = el("small", {}, c.watt, c.port);
    c.append(div("top", c.dot, c.label, c.x), c.trouble, c.strip, c.lay, c.bar, c.memory, c.power);
    return c;
  }

  named(name) { return this.store.s.devices?.[name]?.shown || name; }

  device(c, d, name, s) {
    const here = ["ready", "leaving", "imagined"].includes(d.status), away = this.if.without.includes(name);
    const seen = JSON.stringify([d, away, this.if.on, s.run?.n_layers]);
    if (c.seen === seen) return;
    c.seen = seen;
    c.className = `card${d.lit ? " lit" : ""}${here || d.pairs ? "" : " gone"}${away ? " away" : ""}`;
    c.dot.className = d.lit ? "dot on" : "dot";
    say(c.label, d.shown); c.label.title = d.shown;
    c.x.hidden = !this.if.on; say(c.x, away ? "↺" : "×");
    set(c.x, { label: `${away ? "bring back" : "take away"} ${d.shown}`, "aria-pressed": away });
    say(c.trouble, here ? d.trouble || "" : d.pairs ? "not paired" : d.status);
    c.trouble.title = d.trouble || "";
    c.trouble.hidden = !c.trouble.textContent;
    if (d.pairs && !c.pair) {
      const input = el("input", { type: "text", inputmode: "numeric", placeholder: "code", label: `code that ${d.shown} shows` });
      const send = () => input.value.trim() && this.ask({ ask: "pair", device: name, code: input.value.trim() }, `pairing with ${d.shown}`);
      set(input, { onkeydown: e => e.key === "Enter" && send() });
      c.append(c.pair = el("div", { class: "top", title: "potluck agent pair, on the device, shows the code" }, input, el("button", { onclick: send }, "Pair")));
    } else if (!d.pairs && c.pair) { c.pair.remove(); c.pair = null; }
    const n = s.run?.n_layers || 0, runs = d.layers || [];
    show(c.strip, runs.length && n);
    const key = JSON.stringify([runs, n]);
    if (c.key !== key) {
      c.key = key;
      c.strip.replaceChildren(...runs.map(([a, b]) => el("i", { style: `left:${100 * a / n}%;width:${100 * (b - a) / n}%` })));
      say(c.lay, runs.length ? `layers ${runs.map(([a, b]) => span_of(a, b)).join(", ")} of ${n}` : "");
    }
    const used = d.used !== undefined && d.allowed;
    show(c.bar, used);
    if (used) { c.mem.style.width = percent(Math.min(1, d.used / d.allowed)); c.mem.className = d.used > d.allowed ? "over" : ""; }
    say(c.left, d.allowed ? (used ? `${size(d.used)} of ${size(d.allowed)}` : size(d.allowed)) : "");
    say(c.right, used ? percent(d.used / d.allowed) : "");
    c.watt.className = d.estimated ? "watt est" : "watt";
    say(c.watt, [d.watts !== undefined ? `${three(d.watts)} W${d.estimated ? " est." : ""}` : "",
      d.battery !== undefined ? `${d.battery < .2 ? "▁" : "▆"} ${percent(d.battery)}` : ""].filter(Boolean).join(" · "));
    const p = d.port || {};
    say(c.port, [p.up !== undefined ? `↑ ${percent(p.up)}` : "", p.down !== undefined ? `↓ ${percent(p.down)}` : "",
      p.both !== undefined ? `⇅ ${percent(p.both)}` : ""].filter(Boolean).join(" "));
    set(c, { label: `${d.shown}: ${d.status}${d.lit ? ", at work" : ""}, ${c.lay.textContent || "no layers"}` });
  }

  // --- plans ---

  limit(name, input, output, told) {
    const [low, high] = this.bounds[name] || [0, 1], part = input.value / 1000;
    if (part >= 1) delete this.limits[name]; else this.limits[name] = low * (1 + 1e-9) + (high - low) * part;
    say(output, part >= 1 ? "any" : told(this.limits[name]));
    set(input, { "aria-valuetext": output.textContent });
    this.plans(this.store.s);
    clearTimeout(this.limitTimer);
    this.limitTimer = setTimeout(() => { this.limitTimer = 0; this.ask({ ask: "limits", ...this.limits }, "planning within these limits"); }, 200);
  }

  fits(p) {
    const l = this.limits;
    return !(l.latency_s && p.s > l.latency_s || l.energy_j && (p.j === undefined || p.j > l.energy_j) || l.memory_bytes && p.bytes > l.memory_bytes);
  }

  plans(s) {
    const real = ordered(s.plans), dreams = ordered(s.imagined_plans), all = [...real, ...dreams];
    const [axes, line, back, dots] = this.svg.children;
    show(this.svg, all.length);
    show(this.sliders, all.length > 1);
    // far slower ones would press the good ones into a corner
    const fastest = Math.min(...all.map(([, p]) => p.s)), near = all.filter(([, p]) => p.s <= 6 * fastest || p.here), far = all.length - near.length;
    say(this.planNote, s.no_plan?.words || (far ? `${far} far slower: not drawn.` : all.length ? "" : s.run?.state ? "No other plan yet: they need a profile of the model." : "Nothing runs. Deploy a plan: others appear beside it."));
    if (!all.length) { this.points.forEach(p => p.remove()); this.points.clear(); return; }
    const thrifty = all.every(([, p]) => p.j !== undefined), up = p => thrifty ? p.j : p.bytes;
    const reach = values => { const a = Math.min(...values), b = Math.max(...values), pad = (b - a) * .1 || b * .1 || 1; return [Math.max(0, a - pad), b + pad]; };
    const [x0, x1] = reach(near.map(([, p]) => p.s)), [y0, y1] = reach(near.map(([, p]) => up(p)));
    const X = v => 52 + 396 * (v - x0) / (x1 - x0), Y = v => 214 - 196 * (v - y0) / (y1 - y0);
    const marks = (a, b, n) => Array.from({ length: n }, (_, i) => a + (b - a) * (i + .5) / n);
    axes.replaceChildren(...marks(x0, x1, 4).flatMap(v => [sv("text", { x: X(v), y: 232, "text-anchor": "middle" }, secs(v)),
      sv("line", { x1: X(v), x2: X(v), y1: 18, y2: 214 })]),
    ...marks(y0, y1, 4).flatMap(v => [sv("text", { x: 46, y: Y(v) + 4, "text-anchor": "end" }, thrifty ? joules(v) : size(v)),
      sv("line", { x1: 52, x2: 448, y1: Y(v), y2: Y(v) })]),
    sv("text", { x: 448, y: 247, "text-anchor": "end" }, `time of a ${s.run?.noun || "step"} →`), sv("text", { x: 6, y: 10 }, thrifty ? "energy of it; size: memory" : "highest memory"));
    const front = [];
    for (const [, p] of real.filter(([, p]) => this.fits(p)).sort((a, b) => a[1].s - b[1].s || up(a[1]) - up(b[1])))
      if (!front.length || up(p) < up(front.at(-1))) front.push(p);
    line.replaceChildren(sv("polyline", { points: front.map(p => `${X(p.s)},${Y(up(p))}`).join(" "), stroke: "var(--blue)", "stroke-width": 1.5, opacity: .55 }));
    const limits = [], l = this.limits, shade = (a, b, low) =>
      sv("rect", { x: a, y: 18, width: Math.max(0, b - a), height: Math.max(0, low - 18), fill: "var(--grey)", opacity: .13 });
    if (l.latency_s) limits.push(shade(X(l.latency_s), 448, 214));
    if (l.energy_j && thrifty) limits.push(shade(52, 448, Y(l.energy_j)));
    back.replaceChildren(...limits);
    const most = Math.max(...all.map(([, p]) => p.bytes)) || 1;
    const best = p => front.includes(p) + 2 * p.here;  // on top
    const keyed = [...dreams.map(([k, p]) => [`if ${k}`, { ...p, dream: true, key: k }]),
      ...[...real].sort((a, b) => best(a[1]) - best(b[1])).map(([k, p]) => [k, { ...p, key: k }])].filter(([, p]) => near.some(([, q]) => q.s === p.s));
    const held = this.root.activeElement;
    kept(dots, this.points, keyed, key => {
      const g = sv("g", { class: "pt", tabindex: 0, role: "button" });
      g.halo = sv("circle", { class: "halo", r: 13 }); g.dotted = sv("circle", {}); g.ring = sv("circle", { r: 10, fill: "none", stroke: "var(--red)", "stroke-width": 2 });
      g.here = sv("text", { x: 14, y: -9 }, ""); g.titled = sv("title", {});
      g.append(g.halo, g.dotted, g.ring, g.here, g.titled);
      g.addEventListener("click", () => this.choose(g.plan.key));
      g.addEventListener("keydown", e => (e.key === "Enter" || e.key === " ") && (e.preventDefault(), this.choose(g.plan.key)));
      return g;
    }, (g, p) => {
      g.plan = p;
      const who = `${p.planner} on ${p.devices.join(", ")}`, fits = this.fits(p), chosen = s.preview?.asked === p.key;
      set(g, { transform: `translate(${X(p.s).toFixed(1)},${Y(up(p)).toFixed(1)})`, class: `pt${fits || p.here ? "" : " dim"}`, "data-plan": p.key,
        label: `plan by ${who}: ${secs(p.s)}, ${energy(p)}, ${size(p.bytes)}${p.here ? ", you are here" : ""}${p.dream ? ", of the imagined home" : ""}${fits ? "" : ", beyond the limits"}`,
        "aria-pressed": chosen });
      set(g.dotted, { r: 3.5 + 4.5 * Math.sqrt(p.bytes / most), fill: p.dream ? "var(--paper)" : front.includes(s.plans[p.key]) ? "var(--blue)" : "var(--grey)",
        stroke: p.dream ? "var(--green)" : "var(--paper)", "stroke-width": p.dream ? 2 : 1, "stroke-dasharray": p.dream ? "3 2" : undefined });
      set(g.halo, { stroke: chosen ? "var(--ink)" : undefined });
      show(g.ring, p.here && !p.dream);
      say(g.here, p.here && !p.dream ? "you are here" : "");
      set(g.here, { "text-anchor": X(p.s) > 360 ? "end" : "start", x: X(p.s) > 360 ? -14 : 14 });
      say(g.titled, `${who}\n${secs(p.s)}, ${energy(p)}, at most ${size(p.bytes)} on a device`);
    });
    if (held && held.isConnected && held !== this.root.activeElement) held.focus();  // it was moved
    for (const [name, of] of [["latency_s", p => p.s], ["energy_j", p => p.j], ["memory_bytes", p => p.bytes]]) {
      const values = real.map(([, p]) => of(p)).filter(v => v !== undefined);
      // while a limit stands its scale stays: fewer plans must not move it
      if (values.length && (!Object.keys(this.limits).length || !this.bounds[name])) this.bounds[name] = [Math.min(...values), Math.max(...values) * 1.02];
      const { input, output, told } = this.slide[name], most = this.limits[name], [low, high] = this.bounds[name] || [0, 1];
      if (this.slid === false) input.value = most ? 1000 * (most - low) / (high - low) : 1000, say(output, most ? told(most) : "any");
    }
    this.slid = true;
  }

  choose(key) {  // once: look; twice: go
    const p = this.store.s.preview || {};
    if (p.asked === key && this.may(p)) this.go(key);
    else this.ask({ ask: "preview", name: key }, "looking at that plan");
  }

  may(p) { return !p.imagined && !p.no_run && !p.is_here && !this.readonly; }
  go(key) { this.ask({ ask: "go", name: key }, "switching"); }

  preview(s) {
    const p = s.preview || {}, key = JSON.stringify(p);
    if (this.preKey === key) return;
    this.preKey = key;
    this.pre.hidden = !p.asked;
    if (!p.asked) return this.pre.replaceChildren();
    const row = cells => el("tr", {}, ...cells.map(c => el("td", {}, String(c))));
    const moved = (p.moves || []).reduce((sum, m) => sum + m[2], 0);
    const run = s.run || {}, now = run.predicted_s || run.step_s, gain = now && p.s ? now / p.s : 0;
    const what = `${secs(p.s)} a ${run.noun || "step"}, ${energy(p)}` +
      (gain && !p.is_here && !p.imagined ? `: ${three(gain >= 1 ? gain : 1 / gain)} times as ${gain >= 1 ? "fast" : "slow"} as now, as predicted` : "");
    const acts = div("acts");
    if (this.may(p)) acts.append(el("button", { class: "go", onclick: () => this.go(p.asked) }, run.state === "imagined" ? "Look at this plan" : "Switch to this plan"));
    acts.append(el("button", { onclick: () => this.ask({ ask: "preview", name: "" }) }, "Close"),
      span("said", p.is_here ? "This plan is at work." : p.imagined ? "It is of the home that you imagine." : p.no_run ? "Nothing runs that could go over to it."
        : this.readonly || ""));
    this.pre.replaceChildren(el("b", {}, `Plan by ${p.planner}`), el("div", {}, what),
      el("table", {}, el("thead", {}, el("tr", {}, ...["device", "layers", "rows", "memory"].map(h => el("th", { scope: "col" }, h)))),
        el("tbody", {}, ...p.who.map(([d, a, b, n, again, most]) => row([d, span_of(a, b) + (again ? ", computed again" : ""), n, most ? size(most) : ""])))),
      el("div", {}, p.is_here || p.costs_s === undefined ? "" : 
        `${moved ? `Moves ${size(moved)}: ${p.moves.slice(0, 6).map(([a, b, n]) => `${a} → ${b} ${size(n)}`).join(", ")}${p.moves.length > 6 ? ", …" : ""}` : "Nothing moves"}. Costs about ${secs(p.costs_s)}.`), acts);
  }

  effects(s) {
    const e = Object.values(s.effects || {}).pop();
    if (!e) return say(this.effect, "");
    say(this.effect, `Last switch, at step ${e.step}: ${secs(e.after_s)} a step, predicted ${secs(e.predicted_s)}${e.before_s ? `, before ${secs(e.before_s)}` : ""}` +
      `${e.cost_s >= 0 && e.predicted_cost_s >= 0 ? `; it cost ${secs(e.cost_s)}, predicted ${secs(e.predicted_cost_s)}` : ""}.`);
  }

  // --- task stream ---

  paint() {
    const style = getComputedStyle(this.c), of = name => style.getPropertyValue(`--${name}`).trim();
    const colours = { ink: of("ink"), mute: of("mute"), paper: of("paper"), soft: of("soft") };
    const base = "blue orange orange purple green purple red red".split(" ").map(of);
    const context = this.canvas.getContext("2d");
    const hatch = (colour, draw) => {  // told apart without colours, too
      const tile = el("canvas", { width: 6, height: 6 });
      const t = tile.getContext("2d");
      t.fillStyle = colour; t.fillRect(0, 0, 6, 6); t.strokeStyle = t.fillStyle = colours.paper; t.globalAlpha = .5; t.lineWidth = 1.3;
      draw(t); return context.createPattern(tile, "repeat");
    };
    const slash = t => { t.beginPath(); t.moveTo(-1, 7); t.lineTo(7, -1); t.stroke(); };
    const dots = t => { t.fillRect(1, 1, 2, 2); t.fillRect(4, 4, 2, 2); };
    const bars = t => { t.beginPath(); t.moveTo(2, 0); t.lineTo(2, 6); t.stroke(); };
    return { colours, base, fills: [0, slash, slash, bars, dots, bars, 0, bars].map((draw, i) => draw ? hatch(base[i], draw) : base[i]) };
  }

  tasks() {
    const { tasks, predicted, words } = this.store.logs, s = this.store.s;
    if (this.inked !== this.dark || !this.ink.base[0]) { this.ink = this.paint(); this.inked = this.dark; this.legend(); }
    const from = Math.max(0, (s.began?.tasks || 0) - tasks.start);
    const steps = [];
    let current = null;
    for (let i = tasks.items.length - 1; i >= from; i--) {
      const row = tasks.items[i];
      if (!current || current.step !== row[0]) {
        if (steps.length === STEPS) break;
        steps.push(current = { step: row[0], rows: [], length: 0 });
      }
      current.rows.push(row); current.length = Math.max(current.length, row[4]); current.first = tasks.start + i;
    }
    steps.reverse();
    const outline = predicted.items.filter(row => row[0] === s.outline?.step);
    const expected = outline.reduce((most, row) => Math.max(most, row[4]), 0);
    let at = 0;
    for (const step of steps) { step.at = at; at += Math.max(step.length, expected) * 1.03; }
    this.view = { steps, outline, total: at, words };
    const names = [...new Set(ordered(s.devices).filter(([, d]) => d.layers).map(([name]) => name).concat(steps.flatMap(t => t.rows.map(r => words.at(r[1])))))].filter(n => n !== undefined);
    this.lanes = names;
    this.fill();
  }

  fill() {
    if (!this.view) return;
    const { steps, outline, total, words } = this.view, { colours, base, fills } = this.ink, s = this.store.s;
    const width = Math.max(280, this.room || 600), row = 34, left = width < 520 ? 62 : 118, height = Math.max(54, this.lanes.length * row + 24), ratio = devicePixelRatio || 1;
    const c = this.canvas, g = c.getContext("2d");
    const wide = Math.round(width * ratio), high = Math.round(height * ratio);
    if (c.width !== wide || c.height !== high) { c.width = wide; c.height = high; c.style.height = `${height}px`; }
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, width, height);
    const font = px => g.font = `${px}px system-ui,sans-serif`;
    font(12); g.textBaseline = "middle";
    if (!steps.length) { this.hits = []; g.fillStyle = colours.mute; g.fillText(s.run?.state ? "No step was measured yet." : "Nothing runs.", 12, 26); set(c, { label: "task stream: nothing yet" }); return; }
    const { from, to } = this.zoom, scale = (width - left - 8) / (total * (to - from)), X = t => left + (t - total * from) * scale;
    this.hits = []; this.geometry = { left, width, scale, X };
    const order = new Map(this.lanes.map((name, i) => [name, i]));
    const lane = (r, x, y, w) => r[2] >= 6 ? [x, y + (r[2] === 6 ? 20 : 25), w, 4] : [x, y, w, 18];
    g.save(); g.beginPath(); g.rect(left, 0, width - left, height); g.clip();
    for (const t of steps) {
      g.fillStyle = colours.soft; g.fillRect(X(t.at), 0, Math.max(t.length, 1e-9) * scale, height - 20);
      g.fillStyle = colours.mute; g.fillText(`${s.run?.noun || "step"} ${t.step}: ${secs(t.length)}`, Math.max(left, X(t.at)) + 4, height - 9, t.length * scale);
    }
    g.lineWidth = 1.2;
    for (const t of steps) for (const r of t.first >= s.outline?.from ? outline : []) {
      const lane0 = order.get(words.at(r[1]));
      if (lane0 === undefined || r[2] >= 6) continue;
      const x = X(t.at + r[3]), w = Math.max((r[4] - r[3]) * scale, 1), y = lane0 * row + 4;
      if (x > width || x + w < left) continue;
      g.strokeStyle = base[r[2]]; g.globalAlpha = .75; g.strokeRect(x, y - 2.5, w, 23); g.globalAlpha = 1;
    }
    for (const t of steps) for (const r of t.rows) {
      const lane0 = order.get(words.at(r[1]));
      if (lane0 === undefined) continue;
      const x = X(t.at + r[3]), w = Math.max((r[4] - r[3]) * scale, 1), box = lane(r, x, lane0 * row + 4, w);
      if (x > width || x + w < left) continue;
      g.fillStyle = fills[r[2]]; g.fillRect(...box);
      this.hits.push([box, r, t]);
      if (w > 30 && r[2] < 6) { g.fillStyle = this.dark || r[2] === 1 ? "#111" : "#fff"; font(10); g.fillText(words.at(r[8]) || "", x + 4, box[1] + 9, w - 6); font(12); }
    }
    const chosen = this.hits.find(h => h[1] === this.picked);
    if (chosen) { g.strokeStyle = colours.ink; g.lineWidth = 2; g.strokeRect(...chosen[0]); }
    g.restore();
    g.fillStyle = colours.ink;
    this.lanes.forEach((name, i) => g.fillText(cut(g, this.named(name), left - 8), 0, i * row + 13));
    set(c, { label: `task stream: ${steps.length} steps on ${this.lanes.length} devices; arrow keys walk over the tasks` });
  }

  legend() {
    const { base } = this.ink, pattern = ["", "115deg", "115deg", "90deg", "45deg", "90deg", "", "90deg"];
    const swatch = (i, text) => { const look = pattern[i] ? `repeating-linear-gradient(${pattern[i]},${base[i]} 0 3px,color-mix(in srgb,${base[i]} 50%,var(--paper)) 3px 5px)` : base[i];
      return el("span", {}, el("i", { style: `background:${look}` }), text); };
    this.keys.replaceChildren(swatch(0, "forward"), swatch(1, "backward"), swatch(4, "optimizer step"), swatch(5, "tensor work"), swatch(6, "transfer out"), swatch(7, "transfer in"),
      el("span", {}, el("i", { style: `border:1.5px solid ${base[0]}` }), "predicted"), el("span", {}, el("i", { style: "border:1px solid var(--line)" }), "waiting"));
  }

  told(hit) {
    const [, r, t] = hit, { words } = this.view, us = (r[4] - r[3]) * 1e6;
    const lines = [`${words.at(r[8]) || KINDS[r[2]]} on ${this.named(words.at(r[1]))}: ${KINDS[r[2]]}`, `${us.toLocaleString("en", { maximumFractionDigits: 0 })} µs, from ${secs(r[3])}`];
    if (r[5]) lines.push(`${r[5] < 2 ** 24 ? `${r[5].toLocaleString("en")} bytes` : size(r[5])} ${r[2] === 6 ? "to" : "from"} ${this.named(words.at(r[7]))}${us > 0 ? ` at ${rate(r[5] / (us * 1e-6))}` : ""}`);
    return lines;
  }

  describe(hit) {  // the instruction, and where it came from
    const [, r] = hit, run = this.store.s.run || {}, label = this.view.words.at(r[8]) || "", found = /(\d+)[FBIW](\d*)/.exec(label);
    const stage = found && (run.stages || [])[+found[1]], names = run.layer_names || [];
    const from = stage ? ` Stage ${found[1]}: layers ${stage[0]}–${stage[1] - 1}${names.length ? ` (${names[stage[0]]} … ${names[stage[1] - 1]})` : ""} on ${stage[2].join(", ")}` +
      `${found[2] !== "" ? `, micro-batch ${found[2]} of ${Math.round(run.batch / run.micro_batch)}` : ""}.` : "";
    say(this.detail, `${this.told(hit).join("; ")}. Instruction ${r[6]} of its device's program, step ${hit[2].step}, plan by ${run.planner || "?"}.${from}`);
  }

  zoomTo(from, to) {
    const wide = Math.min(1, Math.max(.002, to - from));
    const start = Math.min(1 - wide, Math.max(0, from));
    this.zoom = { from: start, to: start + wide }; this.fill();
  }
  zoomBy(factor, at = .5) {
    const { from, to } = this.zoom, wide = to - from, middle = from + wide * at;
    this.zoomTo(middle - wide * factor * at, middle + wide * factor * (1 - at));
  }

  listen() {
    const c = this.canvas, under = e => {
      const box = c.getBoundingClientRect(), x = e.clientX - box.left, y = e.clientY - box.top;
      for (let i = (this.hits || []).length - 1; i >= 0; i--) { const [[a, b, w, h]] = this.hits[i]; if (x >= a - 1 && x <= a + w + 1 && y >= b - 1 && y <= b + h + 1) return i; }
      return -1;
    };
    const part = moved => moved / (this.geometry.width - this.geometry.left);  // of what is shown
    const pick = hit => { this.picked = hit && hit[1]; if (hit) this.describe(hit); this.fill(); };  // a row: hits are made anew
    set(c, {
      onpointermove: e => {
        const drag = this.drag, box = c.parentElement.parentElement.getBoundingClientRect();
        if (drag) {
          const { from, to } = drag.zoom, moved = e.clientX - drag.x;
          if (drag.moved ||= Math.abs(moved) > 3) this.zoomTo(from - part(moved) * (to - from), to - part(moved) * (to - from));
          return;
        }
        const i = under(e);
        this.tip.classList.toggle("on", i >= 0);
        if (i < 0) return;
        say(this.tip, this.told(this.hits[i]).join("\n"));
        this.tip.style.left = `${Math.max(0, Math.min(e.clientX - box.left + 14, box.width - 220))}px`; this.tip.style.top = `${e.clientY - box.top + 16}px`;
      },
      onpointerleave: () => this.tip.classList.remove("on"),
      onpointercancel: () => this.drag = null,
      onpointerdown: e => { if (this.geometry) { this.drag = { x: e.clientX, zoom: this.zoom }; c.setPointerCapture(e.pointerId); } },
      onpointerup: e => { const { moved } = this.drag || {}; this.drag = null; if (!moved) pick((this.hits || [])[under(e)]); },
      onkeydown: e => {
        const hits = [...this.hits || []].sort((a, b) => a[0][0] - b[0][0]), at = hits.findIndex(h => h[1] === this.picked);
        const go = step => pick(hits[Math.min(hits.length - 1, Math.max(0, at + step))]);
        const acts = { ArrowRight: () => go(1), ArrowLeft: () => go(-1), Home: () => go(-1e9), End: () => go(1e9), "+": () => this.zoomBy(.6), "-": () => this.zoomBy(1.6), Escape: () => this.zoomTo(0, 1) };
        if (acts[e.key] && hits.length) { e.preventDefault(); e.stopPropagation(); acts[e.key](); }
      },
    });
    c.addEventListener("wheel", e => { if (!(e.ctrlKey || e.metaKey) || !this.geometry) return; e.preventDefault(); this.zoomBy(e.deltaY > 0 ? 1.25 : .8, Math.min(1, Math.max(0, part(e.clientX - c.getBoundingClientRect().left - this.geometry.left)))); }, { passive: false });
  }

  // --- power, loss, events ---

  chart(svg, title, curves, told, told_x) {
    const points = curves.flatMap(c => c.points), W = 380, L = 46, B = 176;
    if (!(curves[0]?.points.length > 1)) return svg.replaceChildren(sv("text", { x: 4, y: 20 }, "Nothing yet."));
    let x0 = Infinity, x1 = -Infinity, y1 = 0, y0 = Infinity;
    for (const [x, y] of points) { if (x < x0) x0 = x; if (x > x1) x1 = x; if (y > y1) y1 = y; if (y < y0) y0 = y; }
    if (curves.stacked || y0 > 0 && y0 < y1 * .6) y0 = 0;
    y0 = Math.min(y0, y1); const pad = (y1 - y0) * .08 || y1 * .1 || 1; y1 += pad; if (y0 > 0) y0 = Math.max(0, y0 - pad);
    const X = v => L + (W - L - 6) * (x1 > x0 ? (v - x0) / (x1 - x0) : .5), Y = v => B - (B - 12) * (v - y0) / (y1 - y0);
    const parts = [0, 1, 2, 3].map(i => y0 + (y1 - y0) * i / 3.4).flatMap(v => [sv("line", { x1: L, x2: W - 6, y1: Y(v), y2: Y(v) }), sv("text", { x: L - 6, y: Y(v) + 4, "text-anchor": "end" }, told(v))]);
    for (const c of curves) {
      const xy = ([x, y]) => `${X(x).toFixed(1)},${Y(y).toFixed(1)}`, path = c.points.map(xy);
      if (c.under) parts.push(sv("polygon", { points: [...path, ...c.under.map(xy).reverse()].join(" "), fill: c.fill || c.colour, opacity: c.fill ? 1 : .5 }));
      parts.push(sv("polyline", { points: path.join(" "), stroke: c.colour, "stroke-width": 1.6, "stroke-linejoin": "round" }));
    }
    parts.push(sv("text", { x: L, y: 194 }, told_x(x0)), sv("text", { x: W - 6, y: 194, "text-anchor": "end" }, told_x(x1)));
    set(svg, { label: title });
    svg.replaceChildren(...(svg.defined || []), ...parts);
  }

  power() {
    const { watts, words } = this.store.logs, colours = "blue orange green purple sky red".split(" ").map(name => `var(--${name})`);
    const by = new Map();
    for (const row of watts.items) { const name = words.at(row[1]); if (name !== undefined) by.get(name)?.push(row) || by.set(name, [row]); }
    // a colour each: of many, the last stands for the others
    const names = [...by.keys()], n = names.length > 6 ? 5 : 6, groups = names.slice(0, n).map(name => [name]);
    if (names.length > n) groups.push(names.slice(n));
    this.wattSvg.defined ||= [sv("defs", {}, ...colours.map((fill, i) => sv("pattern", { id: `h${i}`, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      sv("rect", { width: 6, height: 6, fill, opacity: .18 }), sv("rect", { width: 2.4, height: 6, fill, opacity: .6 }))))];
    const last = watts.items.at(-1)?.[0] || 0, first = last - 180;
    let under = [...new Set(watts.items.filter(r => r[0] >= first).map(r => Math.round(r[0])))].sort((a, b) => a - b).slice(-180).map(t => [t, 0]);
    const curves = groups.map((group, i) => {
      const points = under.map(p => [...p]), below = under;
      for (const rows of group.map(name => by.get(name))) {
        let at = 0;
        for (const p of points) {
          const until = p[0] + .5;
          while (at + 1 < rows.length && rows[at + 1][0] <= until) at++;
          if (rows[at][0] <= until && rows[at][0] > until - STALE_S) p[1] += rows[at][2];
        }
      }
      under = points;
      return { points, under: below, colour: colours[i], fill: by.get(group[0]).at(-1)[3] ? `url(#h${i})` : undefined };
    });
    curves.stacked = true;
    this.chart(this.wattSvg, `power of ${names.length} devices, stacked`, curves, v => `${three(v)} W`, v => clock(v));
    const told = groups.map(group => group.length > 1 ? `${group.length} others` : this.named(group[0])), key = told.join("\n");
    if (this.wattKey !== key) { this.wattKey = key; this.wattKeys.replaceChildren(...told.map((name, i) => el("span", {}, el("i", { style: `background:${colours[i]}` }), name)), el("span", {}, "hatched: estimated")); }
  }

  losses() {  // of this run
    const { items, start } = this.store.logs.losses;
    return items.slice(Math.max(0, (this.store.s.began?.losses || 0) - start));
  }

  loss() {
    const all = this.losses(), last = all.at(-1), rows = all.filter(r => Number.isFinite(r[1])), every = Math.max(1, Math.ceil(rows.length / 400));
    const points = rows.filter((_, i) => i % every === 0 || i === rows.length - 1).map(r => [r[0], r[1]]);
    this.chart(this.lossSvg, `loss over ${rows.length} steps`, [{ points, colour: "var(--blue)" }], v => `${Number(v.toPrecision(3))}`, v => `step ${v}`);
    say(this.lossNote, last ? `step ${last[0]}: ${Number(last[1].toPrecision(5))}` : "");
  }

  events() {
    const { events } = this.store.logs, shown = Math.min(events.items.length, this.shown || EVENTS_SHOWN), entries = [];
    for (let i = 0; i < shown; i++) { const number = events.end - 1 - i; entries.push([number, events.at(number)]); }
    kept(this.list, this.rows, entries, (key, e) => el("li", { class: e.kind }, el("b", { label: e.kind, title: e.kind }, MARKS[e.kind] || "·"), el("time", {}, clock(e.at)), el("span", {}, e.words)), () => {});
    this.older.hidden = shown >= events.items.length;
  }
}

// --- notebooks (anywidget) ---

function render({ model, el: host }) {
  const page = new Page(model, host, content => model.send(content));
  const stills = hide => document.querySelectorAll(`[data-potluck-still="${CSS_ESCAPE(model.get("name"))}"]`).forEach(node => {
    show(node.closest(".jp-OutputArea-child") || node, !hide); });
  const heard = (content, buffers) => {
    if (content.frame) page.frame(new DataView(buffers[0].buffer || buffers[0], buffers[0].byteOffset || 0, buffers[0].byteLength));
    else if ("heard" in content) page.heard(content.heard, content.words);
  };
  model.on("msg:custom", heard);
  page.readonly = model.get("readonly");
  page.ask({ ask: "hello" });
  const timer = setInterval(() => stills(true), 500);
  stills(true);
  host.potluck = page;
  return () => { clearInterval(timer); model.off("msg:custom", heard); stills(false); page.end(); };
}
const CSS_ESCAPE = text => (window.CSS && window.CSS.escape ? window.CSS.escape(text) : text);

// --- a page of its own (`potluck watch`) ---

export async function serve(host, base, readonly) {
  const page = new Page(null, host, async content => {
    try {
      const answer = await fetch(`${base}/ask`, { method: "POST", body: JSON.stringify(content) });
      page.heard(content.number, answer.ok ? (await answer.json()).words : readonly || `not heard: ${answer.status}`);
    } catch { page.heard(content.number, "potluck does not answer"); }
  });
  page.readonly = readonly;
  host.potluck = page;
  for (;;) {
    try {
      const reader = (await fetch(`${base}/frames`)).body.getReader();
      let rest = new Uint8Array(0);
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        const all = new Uint8Array(rest.length + value.length);
        all.set(rest); all.set(value, rest.length); rest = all;
        while (rest.length >= 4) {
          const length = new DataView(rest.buffer, rest.byteOffset).getUint32(0, true);
          if (rest.length < 4 + length) break;
          const piece = rest.slice(4, 4 + length);
          rest = rest.slice(4 + length);
          page.frame(new DataView(piece.buffer));
        }
      }
    } catch { /* it is asked again below */ }
    page.error = "potluck does not answer; asking again"; page.late();
    await new Promise(done => setTimeout(done, 1000));
    page.error = "";
  }
}

export default { render };
