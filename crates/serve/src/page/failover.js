// Which standby would be promoted if the primary failed now, and what would be lost.

import { bytes, el, lines, mark, put, show, sync } from "./write.js";

function make() {
  const name = el("h3");
  const tag = el("span", { class: "tag" });
  const status = el("p", { class: "status" });
  const against = el("ul", { class: "troubles" });
  const more = el("ul", { class: "evidence" });
  const root = el("li", { class: "card" }, el("div", { class: "head" }, name, tag), status, against, more);
  return { root, name, tag, status, against, more };
}

function loses({ missing_bytes }) {
  if (missing_bytes === null) return "what would be lost is not known";
  return missing_bytes === 0 ? "has received all WAL" : `${bytes(missing_bytes)} of WAL would be lost`;
}

function slots(of, words) {
  return of.length ? [`${words}: ${of.map((one) => one.slot).join(", ")}`] : [];
}

function update(shown, [first, one]) {
  const ready = one.against.length === 0 && one.missing_bytes !== null;
  mark(shown.root, "data-level", ready ? "ok" : one.against.length ? "risk" : "blind");
  put(shown.name, one.standby);
  put(shown.tag, one.against.length ? "something speaks against it" : first ? "first choice" : "could be promoted");
  put(shown.status, `${ready ? "✓" : one.against.length ? "△" : "?"} ${loses(one)}`);
  lines(shown.against, one.against);
  show(shown.against, one.against.length > 0);
  const logical = one.missing_slots.filter((slot) => slot.logical);
  const physical = one.missing_slots.filter((slot) => !slot.logical);
  lines(shown.more, [
    ...(one.most_transactions ? [`at most ${one.most_transactions} transactions are not visible there`] : []),
    ...(one.unreplayed_bytes ? [`${bytes(one.unreplayed_bytes)} would be replayed first`] : []),
    ...(one.lacks ? [`${one.lacks.standby} has ${bytes(one.lacks.bytes)} more`] : []),
    ...(one.follows ? [`streams from ${one.follows}`] : []),
    ...(one.sync_state ? [`sync_state is ${one.sync_state}`] : []),
    ...(one.timeline ? [`timeline ${one.timeline}`] : []),
    ...slots(logical, "logical slots that are not there, so that their consumers lose changes"),
    ...slots(physical, "slots of standbys that are not there"),
    ...one.settings,
  ]);
}

export function failover(candidates) {
  const at = (id) => document.getElementById(id);
  show(at("failover"), candidates.length > 0);
  const [first] = candidates;
  const ready = first && first.against.length === 0 && first.missing_bytes !== null;
  const words = ready ? `${first.standby} is the first choice` : "not ready";
  put(at("failover-words"), candidates.length ? words : "");
  at("failover").querySelector("details").classList.toggle("bad", !ready);
  const items = candidates.map((one, index) => [index === 0, one]);
  sync(at("failover-list"), items, ([, one]) => one.standby, make, update);
}
