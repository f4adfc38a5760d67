// Servers, their replication slots, and what extension lockstep and relays say.

import { between, bytes, el, lines, mark, pairs, put, seconds, show, sync, version } from "./write.js";

function card() {
  const name = el("h3");
  const tag = el("span", { class: "tag" });
  const status = el("p", { class: "status" });
  const troubles = el("ul", { class: "troubles" });
  const figures = el("dl", { class: "figures" });
  const root = el("article", { class: "card" }, el("div", { class: "head" }, name, tag), status, troubles, figures);
  return { root, name, tag, status, troubles, figures };
}

function cancelled(conflicts) {
  const some = Object.entries(conflicts).filter(([, number]) => number > 0);
  return some.map(([kind, number]) => `${number} (${kind})`).join(", ");
}

// What comes within a day is to be looked at.
function isSoon(ms) {
  return typeof ms === "number" && ms < 86_400_000;
}

// How full pg_wal is, how fast it grows, and when it is full if that goes on.
function folder(node, forecast) {
  if (!node.wal_folder) return null;
  const { growth_bytes_per_s: growth, limit_bytes: limit, full_ms } = forecast ?? {};
  const of = limit ? ` of ${bytes(limit)}` : "";
  const grows = growth > 0 ? `, grows by ${bytes(growth * 3600)} an hour` : "";
  const when = full_ms === 0 ? ", full" : `, full in ${seconds(full_ms)}`;
  const full = typeof full_ms === "number" ? when : "";
  return `${bytes(node.wal_folder.bytes)}${of}${grows}${full}`;
}

function node(shown, { node, forecast }) {
  put(shown.name, node.name);
  put(shown.tag, node.role);
  const isNew = !node.usable && node.troubles.length === 0;
  mark(shown.root, "data-level", !node.usable ? "blind" : isSoon(forecast?.full_ms) ? "risk" : "ok");
  put(shown.status, node.usable ? "✓ answers" : isNew ? "? has not answered yet" : "? cannot be asked");
  lines(shown.troubles, node.troubles);
  show(shown.troubles, node.troubles.length > 0);
  pairs(shown.figures, [
    ["address", node.address],
    ["version", version(node.version) || (node.relay_version && `lockstep relay ${node.relay_version}`)],
    ["round trip", node.round_trip_ms === null ? null : seconds(node.round_trip_ms)],
    ["last answer", node.usable || node.sample_age_ms === null ? null : `${seconds(node.sample_age_ms)} ago`],
    ["WAL", node.wal_bytes_per_s === null ? null : `${bytes(node.wal_bytes_per_s)}/s`],
    ["end of WAL", node.end_lsn],
    ["pg_wal", folder(node, forecast)],
    ["clients in a query", node.usable && node.role !== "relay" ? String(node.active_clients) : null],
    ["waiting for a synchronous replica", node.awaiting_sync ? String(node.awaiting_sync) : null],
    ["queries cancelled by replay", cancelled(node.conflicts)],
  ]);
}

function slot(shown, { node, slot, forecast }) {
  put(shown.name, slot.slot_name);
  put(shown.tag, `${slot.slot_type}, on ${node.name}`);
  const danger = slot.wal_status === "lost" || slot.wal_status === "unreserved";
  mark(shown.root, "data-level", danger ? "lag" : slot.active && !isSoon(forecast?.danger_ms) ? "ok" : "risk");
  put(shown.status, `${slot.active ? "✓ in use" : "△ nobody uses it"}${danger ? `; its WAL is ${slot.wal_status}` : ""}`);
  show(shown.troubles, false);
  const retained = between(slot.restart_lsn, node.end_lsn);
  pairs(shown.figures, [
    ["keeps WAL", retained === null ? null : bytes(retained)],
    ["room until it is in danger", slot.safe_wal_size === null ? null : bytes(slot.safe_wal_size)],
    ["in danger in", typeof forecast?.danger_ms === "number" ? seconds(forecast.danger_ms) : null],
    ["database", slot.database],
    ["confirmed", slot.confirmed_flush_lsn],
  ]);
}

function extension(shown, node) {
  const { lag_ms, conflicts, running, waiting, concurrency_limit, demoted, method } = node.extension;
  put(shown.name, node.name);
  put(shown.tag, node.role);
  show(shown.status, false);
  show(shown.troubles, false);
  pairs(shown.figures, [
    ["replay lag", lag_ms === null ? null : seconds(lag_ms)],
    ["queries running", String(running)],
    ["waiting at the gate", String(waiting)],
    ["let in at once", concurrency_limit ? String(concurrency_limit) : "all"],
    ["sessions at low priority", String(demoted)],
    ["priorities by", method],
    ["replay waited for a query", `${conflicts} ${conflicts === 1 ? "time" : "times"}`],
    ["parallel replay", node.parallel_replay ? node.parallel_replay.words : null],
  ]);
}

function readers(slots) {
  return slots.map((slot) => {
    const given = slot.cache_hit + slot.cache_miss;
    const share = given ? `, ${((100 * slot.cache_hit) / given).toFixed(1)} % of ${given} blocks from memory` : "";
    const use = slot.active_pid === null ? "not in use, " : "";
    return [`slot ${slot.name}`, `${use}${bytes(slot.behind_bytes)} to send${share}`];
  });
}

function limited(count, limit) {
  return limit ? `${bytes(count)} of ${bytes(limit)}` : bytes(count);
}

function group(shown, { node, group }) {
  const streams = group.state === "streaming";
  put(shown.name, `${node.name}: ${group.name}`);
  put(shown.tag, `database ${group.database}`);
  mark(shown.root, "data-level", streams ? "ok" : "lag");
  put(shown.status, streams ? "✓ streaming" : `▲ ${group.state}`);
  lines(shown.troubles, group.reason ? [group.reason] : []);
  show(shown.troubles, Boolean(group.reason));
  pairs(shown.figures, [
    ["in memory", group.cache_limit_bytes ? limited(group.cache_bytes, group.cache_limit_bytes) : "off"],
    ["on disk", limited(group.spool_bytes, group.spool_limit_bytes)],
    ["received", bytes(group.received_bytes)],
    ["transactions", String(group.transactions)],
    ["not durable yet", bytes(between(group.durable, group.received) ?? 0)],
    ["slot on the primary", group.upstream_slot],
  ]);
  shown.readers ??= shown.root.appendChild(el("dl", { class: "positions", "aria-label": "Subscribers" }));
  pairs(shown.readers, readers(node.relay.slots.filter((slot) => slot.group === group.name)));
}

// A folded section says how many there are, and how many of them are not well.
function list(id, items, keyOf, update) {
  const section = document.getElementById(`${id}s`);
  show(section, items.length > 0);
  const parent = document.getElementById(`${id}-list`);
  sync(parent, items, keyOf, card, update);
  const levels = [...parent.children].map((one) => one.getAttribute("data-level") ?? "ok");
  const bad = levels.filter((level) => level !== "ok").length;
  const fold = section.querySelector("details");
  put(section.querySelector("summary span"), `${items.length}${bad ? `, ${bad} to look at` : ", all well"}`);
  fold.classList.toggle("bad", bad > 0);
}

export function servers(state) {
  const folderOf = (name) => state.forecast.nodes.find((one) => one.node === name);
  const nodes = state.nodes.map((node) => ({ node, forecast: folderOf(node.name) }));
  list("node", nodes, ({ node }) => node.name, node);
  const roomOf = (node, slot) => state.forecast.slots.find((one) => one.node === node && one.slot === slot);
  const slots = state.nodes.flatMap((node) => node.slots.map((slot) => ({ node, slot, forecast: roomOf(node.name, slot.slot_name) })));
  list("slot", slots, ({ node, slot }) => `${node.name}/${slot.slot_name}`, slot);
  const groups = state.nodes.flatMap((node) => (node.relay?.groups ?? []).map((group) => ({ node, group })));
  list("relay", groups, ({ node, group }) => `${node.name}/${group.name}`, group);
  list("extension", state.nodes.filter((node) => node.extension), (node) => node.name, extension);
}
