// One card for each replica: how far behind, over time, and where.

import { Chart } from "./chart.js";
import { age, between, bytes, el, lag, mark, pairs, put, seconds, show, sync } from "./write.js";

// Ends of the parts of the way, in their order.
const POSITIONS = {
  physical: [["sent", "sent_lsn"], ["written", "write_lsn"], ["flushed", "flush_lsn"], ["replayed", "replay_lsn"]],
  logical: [["sent", "sent_lsn"], ["received", "write_lsn"], ["applied", "replay_lsn"], ["flushed", "flush_lsn"]],
};

function make(link) {
  const name = el("h3");
  const kind = el("span", { class: "tag" });
  const status = el("p", { class: "status" });
  const figures = el("dl", { class: "figures charted-figures" });
  const chart = new Chart(link.replica);
  const positions = el("dl", { class: "positions" });
  const where = el("details", {}, el("summary", {}, "Positions"), positions);
  const head = el("div", { class: "head" }, name, kind);
  const most = el("span", { class: "most tag" });
  const root = el("article", { class: "card" }, head, el("div", { class: "head" }, status, most), figures, chart.root, where, chart.details);
  return { root, name, kind, status, most, figures, chart, positions };
}

function update(card, link, state) {
  put(card.name, link.replica);
  const replica = link.lockstep_replica;
  put(card.kind, `${replica ? "lockstep replica" : link.kind}, from ${link.upstream}`);
  mark(card.root, "data-level", link.behind ? "lag" : "ok");
  card.root.classList.toggle("calm", !link.behind);
  const why = link.suspect ? `: ${link.suspect.title}` : "";
  const old = age(link);
  const follows = replica?.doing === "copying" ? "△ is not a copy yet" : old ? `△ ${old}` : "✓ follows";
  put(card.status, link.behind ? `▲ lags${why}` : `${follows}${why}`);
  put(card.most, link.behind ? "" : `at most ${seconds(link.lag_max_ms)} in ${state.window_s} s`);
  pairs(card.figures, [
    ["lag now", lag(link)],
    [`most in ${state.window_s} s`, seconds(link.lag_max_ms)],
    ["behind", bytes(link.lag_bytes)],
    ["behind the primary", link.behind_primary ? lag(link.behind_primary) : null],
    ["does", replica?.doing?.replaceAll("_", " ") ?? null],
    ["copied", replica?.copied_share == null ? null : `${Math.round(100 * replica.copied_share)} %`],
    ["commit to visible", link.visible_ms === null ? null : seconds(link.visible_ms)],
  ]);
  const ends = POSITIONS[link.kind].map(([words, field]) => {
    const behind = between(link[field], link.end_lsn);
    return [words, link[field] && `${link[field]}${behind ? ` (${bytes(behind)} to go)` : ""}`];
  });
  pairs(card.positions, [
    [`end on ${link.upstream}`, link.end_lsn],
    ...ends,
    ["applied on the target", replica?.applied_lsn],
    ["slot", link.slot],
    ["calls itself", link.application_name],
  ]);
}

// A replica that was named, and that nothing leads to.
function missing(node) {
  return { id: `node ${node.name}`, node };
}

function makeMissing() {
  const name = el("h3");
  const status = el("p", { class: "status" });
  return { root: el("article", { class: "card", "data-level": "blind" }, name, status), name, status, missing: true };
}

function updateMissing(card, { node }) {
  put(card.name, node.name);
  const why = node.troubles.length ? "it cannot be asked, see below" : "it has not answered yet";
  put(card.status, node.usable ? "? replicates from no server that was named" : `? nothing is known: ${why}`);
}

export function replicas(parent, state, news, draw) {
  const named = (node) => (link) => link.replica === node.name || link.replica.startsWith(`${node.name} (`);
  const lost = state.nodes.filter((node) => (node.role === "standby" || node.role === "subscriber") && !state.links.some(named(node)));
  const behind = state.links.filter((link) => link.behind);
  const others = state.links.filter((link) => !link.behind);
  const items = [...behind, ...lost.map(missing), ...others];
  sync(parent, items, (item) => item.id, (item) => (item.node ? makeMissing() : make(item)), (card, item) => {
    if (item.node) return updateMissing(card, item);
    update(card, item, state);
    card.link = item;
  });
  show(document.getElementById("told-late"), state.links.some((link) => link.lag_is_most));
  show(document.getElementById("no-replica"), items.length === 0 && state.number > 0);
  if (draw) drawAll(parent, state, news);
}

// After the cards are in the page: only then they have a width.
export function drawAll(parent, state, news) {
  for (const { chart, link } of parent.kept?.values() ?? []) {
    if (chart) chart.draw(news.moments.get(link.id) ?? [], link.stages, news.span, Math.max(news.step, 1000 * state.every_s), state.at_ms, !link.behind);
  }
}
