// The pool of read nodes, as the agents beside the nodes tell it.

import { askPool } from "./news.js";
import { bytes, clock, el, mark, pairs, put, seconds, show, sync } from "./write.js";

const EVERY = 2000;
const at = (id) => document.getElementById(id);
const LEVELS = { in: "ok", writes: "ok", draining: "risk", late: "risk" };
const SIGNS = { in: "✓", writes: "✓", draining: "△", late: "△" };
const WORDS = { in: "takes sessions", writes: "takes the writes", draining: "takes no new session", late: "is late", out: "takes no session" };

function card() {
  const name = el("h3");
  const tag = el("span", { class: "tag" });
  const status = el("p", { class: "status" });
  const figures = el("dl", { class: "figures" });
  const root = el("li", { class: "card" }, el("div", { class: "head" }, name, tag), status, figures);
  return { root, name, tag, status, figures };
}

const number = (value, words) => (typeof value === "number" ? words(value) : null);

// One that takes writes is out for readers.
function state(answer) {
  return answer?.takes_writes === true && answer.state !== "draining" ? "writes" : answer?.state;
}

function staleness(answer) {
  const age = number(answer.staleness_ms, seconds);
  return age && answer.staleness_known !== true ? `not known for ${age}` : age;
}

function update(shown, { node, door, answer, trouble }) {
  const is = state(answer);
  mark(shown.root, "data-level", answer ? LEVELS[is] ?? "lag" : "blind");
  put(shown.name, node);
  put(shown.tag, `${answer?.role ?? "role not known"}, ${door}`);
  const why = answer ? (is === "writes" ? "" : answer.why) : trouble;
  const words = answer ? WORDS[is] ?? "is in a state that this page does not know" : "its agent cannot be asked";
  put(shown.status, `${answer ? SIGNS[is] ?? "▲" : "?"} ${words}${why ? `: ${why}` : ""}`);
  const isIn = is === "in";
  pairs(shown.figures, answer ? [
    ["staleness", is === "writes" ? null : staleness(answer)],
    ["not replayed", is === "writes" ? null : number(answer.lag_bytes, bytes)],
    ["share of sessions", isIn ? number(answer.share_percent, (share) => `${share} %`) : null],
    ["warm", isIn ? (answer.risen === true ? "yes" : "its share rises") : null],
    ["connections", number(answer.sessions, String)],
  ] : []);
}

function render({ nodes, trouble, at_ms }) {
  show(at("pool"), true);
  const taking = nodes.filter(({ answer }) => state(answer) === "in").length;
  const when = at_ms === null ? "" : ` at ${clock(at_ms)}`;
  put(at("pool-words"), trouble ?? `${taking} of ${nodes.length} nodes take readers${when}`);
  sync(at("pool-list"), nodes, ({ node }) => node, card, update);
}

async function ask() {
  try {
    const told = await askPool();
    if (!told.asked) return;
    if (!document.hidden) render(told);
  } catch {
    put(at("pool-words"), "no news of the pool");
  }
  setTimeout(ask, EVERY);
}

ask();
