// A replica's lag over time, and below it the bytes in each part of the way, stacked. Drawn by
// hand as SVG; the same as a sentence and as a table.

import { bytes, clock, el, lines as cellsOf, mark, moment, put, seconds, sync, zone } from "./write.js";

const SVG = "http://www.w3.org/2000/svg";
const LAG = { top: 16, bottom: 74 };
const BYTES = { top: 100, bottom: 178 };
const HEIGHT = 196;
const CALM = { height: 96, lag: { top: 10, bottom: 74 } };
const LEFT = 52;
const ROWS = 20;
// Lag and bytes below these fill no chart.
const LEAST_MS = 100;
const LEAST_BYTES = 64 * 1024;

let charts = 0;

function svg(tag, about = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(about)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Each part of the way has a pattern besides its colour.
const PATTERNS = [
  () => [],
  () => [svg("path", { d: "M-2 2L2 -2M0 8L8 0M6 10L10 6", class: "hatch" })],
  () => [svg("circle", { cx: 2, cy: 2, r: 1.1, class: "dot" }), svg("circle", { cx: 6, cy: 6, r: 1.1, class: "dot" })],
  () => [svg("path", { d: "M0 4H8M4 0V8", class: "hatch" })],
];

function pattern(id, index) {
  const about = { id, width: 8, height: 8, patternUnits: "userSpaceOnUse" };
  return svg("pattern", about, svg("rect", { width: 8, height: 8, class: `stage${index}` }), ...PATTERNS[index]());
}

// The smallest of 1, 2, 5 times a power of the base's unit that is not less.
function ceiling(value, least, base) {
  if (value <= least) return least;
  let unit = least;
  for (;;) {
    for (const factor of [1, 2, 5]) if (unit * factor >= value) return unit * factor;
    unit *= base;
  }
}

export class Chart {
  constructor(name) {
    this.name = name;
    this.id = `chart${++charts}`;
    this.picture = svg("svg", { role: "img", height: HEIGHT, class: "chart" });
    const defs = svg("defs", {}, ...PATTERNS.map((_, index) => pattern(`${this.id}-${index}`, index)));
    this.plot = svg("g");
    this.cross = svg("path", { class: "cross" });
    this.picture.append(defs, this.plot, this.cross);
    this.readout = el("p", { class: "readout", "aria-hidden": "true" });
    const move = (event) => this.point(event.clientX - this.picture.getBoundingClientRect().left);
    this.picture.addEventListener("pointermove", move);
    this.picture.addEventListener("pointerdown", move);
    this.picture.addEventListener("pointerleave", () => this.point(null));
    this.legend = el("ul", { class: "legend", "aria-label": "Bytes in each part of the way, now" });
    this.head = el("tr");
    this.body = el("tbody");
    this.table = el("table", {}, el("caption", { class: "unseen" }, `Lag of ${name} over time`), el("thead", {}, this.head), this.body);
    const scroll = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Figures of ${name}` }, this.table);
    this.details = el("details", {}, el("summary", {}, "The chart as a table"), scroll);
    this.details.addEventListener("toggle", () => this.fill());
    this.root = el("div", { class: "charted" }, this.readout, this.picture, this.legend);
  }

  // The moment below the pointer, in words above the curve and as a line through it.
  point(at) {
    this.pointer = at;
    const { moments, stages, x, height } = this.drawn ?? {};
    const near = at === null || !moments?.length ? null : moments.reduce((near, one) => (Math.abs(x(one.at_ms) - at) < Math.abs(x(near.at_ms) - at) ? one : near));
    mark(this.cross, "d", near ? `M${x(near.at_ms).toFixed(1)} 0V${height - 16}` : "");
    const parts = near ? stages.map((stage, index) => [stage.name, near.stage_bytes[index]]).filter(([, count]) => count > 0) : [];
    const visible = near?.visible_ms === undefined || near.visible_ms === null ? "" : `, visible after ${seconds(near.visible_ms)}`;
    put(this.readout, near ? `${clock(near.at_ms)} ${zone(near.at_ms)}: ${seconds(near.lag_ms)}${visible}${parts.map(([name, count]) => ` · ${name} ${bytes(count)}`).join("")}` : "");
  }

  // `moments` are the oldest first; `to` is now; both in milliseconds since 1970.
  // One that is calm has the curve of lag alone.
  draw(moments, stages, span, step, to, calm) {
    this.last = { moments, stages };
    this.explain(moments, stages, span);
    this.fill();
    const width = Math.max(240, this.picture.parentElement?.clientWidth || 320);
    const height = calm ? CALM.height : HEIGHT;
    const box = calm ? CALM.lag : LAG;
    mark(this.picture, "height", String(height));
    mark(this.picture, "viewBox", `0 0 ${width} ${height}`);
    this.legend.hidden = calm;
    const from = to - span;
    const x = (at) => LEFT + ((at - from) / span) * (width - LEFT);
    this.drawn = { moments, stages, x, height };
    const mostLag = ceiling(Math.max(0, ...moments.map((one) => one.lag_ms)), LEAST_MS, 10);
    const sums = moments.map((one) => one.stage_bytes.reduce((sum, part) => sum + part, 0));
    const mostBytes = ceiling(Math.max(0, ...sums), LEAST_BYTES, 10);
    const parts = [];
    const lines = [];
    for (const run of runs(moments, Math.max(step, 1000) * 3.5)) {
      const lagY = (ms) => box.bottom - (ms / mostLag) * (box.bottom - box.top);
      lines.push(svg("path", { class: "lag", d: line(run.map((one) => [x(one.at_ms), lagY(one.lag_ms)])) }));
      if (calm) continue;
      const bytesY = (count) => BYTES.bottom - (count / mostBytes) * (BYTES.bottom - BYTES.top);
      let below = run.map(() => 0);
      stages.forEach((_, index) => {
        const above = run.map((one, at) => below[at] + one.stage_bytes[index]);
        const edge = (sums) => run.map((one, at) => [x(one.at_ms), bytesY(sums[at])]);
        const d = `${line(edge(above))}${line(edge(below).reverse()).replace("M", "L")}Z`;
        parts.push(svg("path", { class: "area", fill: `url(#${this.id}-${index})`, d }));
        below = above;
      });
    }
    parts.push(...frame(width, box, mostLag, seconds, calm ? "" : "lag"));
    if (!calm) parts.push(...frame(width, BYTES, mostBytes, bytes, "bytes on the way"));
    parts.push(...lines);
    const times = [[LEFT, "start", from], [width, "end", to]];
    for (const [at, anchor, time] of times) {
      parts.push(svg("text", { x: at, y: height - 4, "text-anchor": anchor }, moment(time, span)));
    }
    this.plot.replaceChildren(...parts);
    if (this.pointer !== undefined && this.pointer !== null) this.point(this.pointer);
  }

  explain(moments, stages, span) {
    const worst = moments.reduce((worst, one) => (!worst || one.lag_ms > worst.lag_ms ? one : worst), null);
    const now = moments.at(-1);
    const minutes = span / 60_000;
    const time = minutes > 60 ? `${minutes / 60} hours` : `${minutes} minutes`;
    let words = `${this.name}, the last ${time}: nothing is known yet.`;
    if (now) {
      const parts = stages.map((stage, index) => `${stage.name} ${bytes(now.stage_bytes[index])}`);
      words = `${this.name}, the last ${time}: lag ${seconds(now.lag_ms)} now, at most ${seconds(worst.lag_ms)} at ${clock(worst.at_ms)} ${zone(worst.at_ms)}. On the way now: ${parts.join(", ")}.`;
    }
    mark(this.picture, "aria-label", words);
    const make = (stage) => {
      const swatch = svg("svg", { width: 14, height: 14, "aria-hidden": "true" }, svg("rect", { width: 14, height: 14, fill: `url(#${this.id}-${stages.indexOf(stage)})` }));
      const words = el("span");
      return { root: el("li", {}, swatch, words), words };
    };
    sync(this.legend, stages, (stage) => stage.name, make, (entry, stage) => put(entry.words, `${stage.name} ${bytes(stage.bytes)}`));
  }

  // The table, while it is open: the worst moment of each of some equal parts.
  fill() {
    if (!this.details.open || !this.last) return;
    const { moments, stages } = this.last;
    cellsOf(this.head, ["time", "lag", ...stages.map((stage) => stage.name)], "th");
    for (const cell of this.head.children) mark(cell, "scope", "col");
    const size = Math.ceil(moments.length / ROWS) || 1;
    const rows = [];
    for (let end = moments.length; end > 0; end -= size) {
      const part = moments.slice(Math.max(0, end - size), end);
      rows.push(part.reduce((worst, one) => (one.lag_ms > worst.lag_ms ? one : worst)));
    }
    const cells = (one) => [clock(one.at_ms), seconds(one.lag_ms), ...one.stage_bytes.map((count) => (count ? bytes(count) : "0"))];
    sync(this.body, rows, (_one) => "row", () => ({ root: el("tr") }), ({ root }, one) => cellsOf(root, cells(one), "td"));
  }
}

// The axis, with a figure at its foot, its middle and its head.
function frame(width, { top, bottom }, most, words, title) {
  const parts = [0, 0.5, 1].flatMap((share) => {
    const y = bottom - share * (bottom - top);
    return [
      svg("path", { class: share ? "grid" : "axis", d: `M${LEFT} ${y}H${width}` }),
      svg("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, share ? words(share * most) : "0"),
    ];
  });
  if (title) parts.push(svg("text", { x: LEFT, y: top - 5 }, title));
  return parts;
}

function line(points) {
  return points.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}

// Moments without a hole between them.
function runs(moments, hole) {
  const found = [];
  let last = null;
  for (const moment of moments) {
    if (!last || moment.at_ms - last.at_ms > hole) found.push([]);
    found.at(-1).push(moment);
    last = moment;
  }
  return found;
}
