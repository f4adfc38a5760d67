// The topology as a picture: boxes for nodes, and an edge with its lag from each upstream to each
// replica. Where there is room it grows to the right, and else downwards.

import { age, cut, el, lag, mark, put, show, sync } from "./write.js";

const SVG = "http://www.w3.org/2000/svg";
// Below this width the picture grows downwards, in pixels.
const NARROW = 640;
const WIDE = { width: 220, height: 66, gap: 14, least: 96 };
// Width of a letter of a name, and of what stands beside the name in its box, in pixels.
const LETTER = 9;
const BESIDE = 44;
const TALL = { height: 66, gap: 10, indent: 22 };
const SIGNS = { ok: "✓", lag: "▲", risk: "△", blind: "?" };

function svg(tag, about, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(about)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Several links can lead to one node: `node (subscription)`.
function owner(names, name) {
  return names.find((known) => name === known || name.startsWith(`${known} (`)) ?? name;
}

// Places by name: each with its node, if it was named, its worst link, and its upstream.
function places(state) {
  const names = state.nodes.map((node) => node.name);
  const found = new Map(state.nodes.map((node) => [node.name, { name: node.name, role: node.role, node, link: null, up: null, below: [] }]));
  for (const link of state.links) {
    const name = owner(names, link.replica);
    if (!found.has(name)) found.set(name, { name, role: link.kind === "logical" ? "logical" : "standby", node: null, link: null, up: null, below: [] });
    const place = found.get(name);
    const worse = !place.link || link.behind > place.link.behind || (link.behind === place.link.behind && link.lag_ms > place.link.lag_ms);
    if (worse) place.link = link;
    place.up ??= owner(names, link.upstream);
  }
  for (const place of found.values()) {
    if (place.up === place.name || !found.has(place.up)) place.up = null;
    else found.get(place.up).below.push(place);
  }
  return found;
}

// Numbers rows and columns, from each place without an upstream on.
function arrange(found) {
  const placed = [];
  const leaf = { row: 0 };
  const visit = (place, depth) => {
    if (place.depth !== undefined) return;
    place.depth = depth;
    place.order = placed.length;
    placed.push(place);
    place.below.forEach((below) => visit(below, depth + 1));
    const rows = place.below.filter((below) => below.depth === depth + 1).map((below) => below.row);
    place.row = rows.length ? (Math.min(...rows) + Math.max(...rows)) / 2 : leaf.row++;
  };
  const all = [...found.values()];
  all.filter((place) => place.role === "primary").forEach((place) => visit(place, 0));
  // Whose upstream is not known stands where a replica would.
  all.filter((place) => !place.up).forEach((place) => visit(place, 1));
  all.forEach((place) => visit(place, 1));
  return { placed, rows: leaf.row, depth: Math.max(0, ...placed.map((place) => place.depth)) };
}

function level(place) {
  if (place.node && !place.node.usable) return "blind";
  if (place.link?.behind || place.node?.suspect?.severity === "lag") return "lag";
  if (place.link?.suspect?.severity === "risk" || place.node?.suspect?.severity === "risk") return "risk";
  if (place.link && age(place.link)) return "risk";
  if (!place.link && place.role !== "primary" && place.role !== "relay") return "blind";
  return "ok";
}

function why(place, is) {
  if (is === "ok") return "";
  if (place.node && !place.node.usable) return place.node.troubles[0] ?? "has not answered yet";
  const suspect = place.link?.suspect ?? place.node?.suspect;
  if (suspect && suspect.severity !== "note") return suspect.title;
  if (place.link && age(place.link)) return age(place.link);
  if (suspect) return suspect.title;
  return is === "lag" ? "the cause is not known yet" : "its upstream is not known";
}

// Left upper corner and size of each box, and the size of all.
function layout({ placed, rows, depth }, width) {
  if (width < NARROW) {
    placed.forEach((place) => {
      const left = place.depth * TALL.indent;
      place.box = { left, top: place.order * (TALL.height + TALL.gap), width: width - left, height: TALL.height };
    });
    return placed.length * (TALL.height + TALL.gap);
  }
  const columns = depth + 1;
  const longest = Math.max(0, ...placed.map((place) => place.name.length));
  const most = Math.max(340, longest * LETTER + BESIDE);
  const wide = Math.min(most, Math.max(140, (width - depth * WIDE.least) / columns));
  const gap = depth ? Math.min(260, (width - columns * wide) / depth) : 0;
  placed.forEach((place) => {
    const left = place.depth * (wide + gap);
    place.box = { left, top: place.row * (WIDE.height + WIDE.gap), width: wide, height: WIDE.height };
  });
  return rows * (WIDE.height + WIDE.gap);
}

function edge(up, place, narrow, is) {
  const [from, to] = [up.box, place.box];
  const middle = to.top + to.height / 2;
  const known = place.link ? lag(place.link) : "";
  if (narrow) {
    const x = from.left + 9;
    return [svg("path", { class: `edge ${is}`, d: `M${x} ${from.top + from.height}V${middle}H${to.left}` })];
  }
  const [x, y, end] = [from.left + from.width, from.top + from.height / 2, to.left];
  const half = (x + end) / 2;
  const curve = svg("path", { class: `edge ${is}`, d: `M${x} ${y}C${half} ${y} ${half} ${middle} ${end - 7} ${middle}` });
  const head = svg("path", { class: `head ${is}`, d: `M${end} ${middle}l-8 -4.5v9Z` });
  const label = svg("text", { class: `label ${is}`, x: end - 12, y: middle - 7, "text-anchor": "end" }, known);
  return [curve, head, label];
}

function make() {
  const name = el("strong");
  const role = el("span", { class: "role" });
  const most = el("span", { class: "most" });
  const cause = el("span", { class: "why" });
  return { root: el("li", { class: "place" }, el("div", { class: "first" }, name, most), role, cause), name, role, most, cause };
}

function update(shown, place, narrow) {
  const is = level(place);
  mark(shown.root, "data-level", is);
  const { left, top, width, height } = place.box;
  Object.assign(shown.root.style, { left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px` });
  const beside = narrow ? 3 * BESIDE : BESIDE;
  put(shown.name, `${SIGNS[is]} ${cut(place.name, Math.floor((width - beside) / LETTER))}`);
  const from = place.link && place.up ? `, from ${place.up}` : "";
  const role = place.link?.lockstep_replica ? "lockstep replica" : place.role;
  put(shown.role, `${role}${from}`);
  // On a wide picture the edge shows the lag to the eye, and this to screen readers.
  put(shown.most, place.link ? `lag ${lag(place.link)}` : "");
  shown.most.classList.toggle("unseen", !narrow);
  put(shown.cause, why(place, is));
  mark(shown.root, "title", [place.name, place.node?.address, why(place, is)].filter(Boolean).join("\n"));
}

export function topology(state) {
  const of = (id) => document.getElementById(id);
  show(of("topology"), state.nodes.length > 0);
  const map = of("map");
  const found = places(state);
  const arranged = arrange(found);
  const width = map.clientWidth || 320;
  const narrow = width < NARROW;
  const height = layout(arranged, width);
  map.style.height = `${height}px`;
  mark(of("edges"), "viewBox", `0 0 ${width} ${height}`);
  sync(of("places"), arranged.placed, (place) => place.name, make, (shown, place) => update(shown, place, narrow));
  const edges = arranged.placed.filter((place) => place.up && place.depth > found.get(place.up).depth);
  of("edges").replaceChildren(...edges.flatMap((place) => edge(found.get(place.up), place, narrow, level(place))));
}
