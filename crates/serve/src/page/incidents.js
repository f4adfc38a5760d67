// What was the matter, from when to when, the newest first.

import { bytes, el, mark, moment, put, seconds, show, sync, zone } from "./write.js";

// Most that are listed.
const MOST = 50;
const WORDS = { lag: "▲ lag", lost: "? cannot be asked", risk: "△ risk" };

function make() {
  const what = el("span", { class: "what" });
  const at = el("strong");
  const when = el("span", { class: "when" });
  const most = el("span", { class: "most" });
  const cause = el("span", { class: "why" });
  return { root: el("li", {}, what, at, when, most, cause), what, at, when, most, cause };
}

function update(shown, one) {
  const lasts = (one.end_ms ?? null) === null;
  mark(shown.root, "data-level", lasts ? { lag: "lag", lost: "blind", risk: "risk" }[one.matter] : "over");
  put(shown.what, WORDS[one.matter]);
  put(shown.at, one.at);
  const length = lasts ? "" : `, ${seconds(Math.max(0, one.end_ms - one.begin_ms))}`;
  const time = `${moment(one.begin_ms)} – ${lasts ? "now" : moment(one.end_ms)}`;
  put(shown.when, `${time} ${zone(one.begin_ms)}${length}`);
  const bound = one.lag_is_least ? "at least" : "at most";
  put(shown.most, one.most_lag_ms === null ? "" : `${bound} ${seconds(one.most_lag_ms)}, ${bytes(one.most_lag_bytes)}`);
  put(shown.cause, one.causes.join("; then ") || "the cause was not found");
}

export function incidents(list) {
  const of = (id) => document.getElementById(id);
  show(of("incidents"), list.length > 0);
  sync(of("incident-list"), list.slice(0, MOST), (one) => String(one.id), make, update);
  put(of("incident-more"), list.length > MOST ? `and ${list.length - MOST} older ones: api/incidents` : "");
}
