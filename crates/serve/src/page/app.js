// The page: the verdict, causes, replicas and servers, from news as they come.

import { failover } from "./failover.js";
import { incidents } from "./incidents.js";
import "./pool.js";
import { CLUSTER, News, allClusters } from "./news.js";
import { drawAll, replicas } from "./replica.js";
import { servers } from "./servers.js";
import { topology } from "./topology.js";
import { aside, clock, el, lines, mark, put, show, sync, zone } from "./write.js";

const at = (id) => document.getElementById(id);
const MARKS = { starting: "…", ok: "✓", risk: "△", blind: "?", lag: "▲" };
let lostSince;

function cause() {
  const title = el("h3");
  const tag = el("span", { class: "tag" });
  const remedies = el("ol", { class: "remedies" });
  const evidence = el("ul", { class: "evidence" });
  const query = el("code");
  const asked = el("div", { class: "query" }, el("span", { class: "quiet" }, "query"), el("pre", {}, query));
  const root = el("li", { class: "card" }, el("div", { class: "head" }, title, tag), remedies, evidence, asked);
  return { root, title, tag, remedies, evidence, query, asked };
}

function severity(found) {
  if (found.severity === "lag") return `lag, explains ${Math.round(found.explains * 100)} %`;
  return found.severity === "risk" ? "risk" : "no lag";
}

function updateCause(shown, found) {
  mark(shown.root, "data-level", { lag: "lag", risk: "risk", note: "ok" }[found.severity]);
  put(shown.title, `${found.at}: ${found.title}`);
  put(shown.tag, severity(found));
  show(shown.remedies, !aside(found));
  show(shown.evidence, !aside(found));
  lines(shown.remedies, found.remedies.map((remedy, index) => `${index ? "Or" : "Do"}: ${remedy}`));
  lines(shown.evidence, found.evidence.map((fact) => fact.words));
  put(shown.query, found.names.query ?? "");
  show(shown.asked, Boolean(found.names.query));
}

function causes(findings) {
  show(at("causes"), findings.length > 0);
  const real = findings.some((found) => found.severity !== "note");
  put(at("causes-title"), real ? "Causes, the most important first" : "Looks like lag, and is none");
  const key = (found) => `${found.at}/${found.cause}/${found.names.pid ?? ""}`;
  sync(at("cause-list"), findings, key, cause, updateCause);
}

// What has to be true, and whether it is: what is wrong or not known comes first.
function checks(done) {
  const order = ["wrong", "not_known", "well"];
  const sorted = [...done].sort((a, b) => order.indexOf(a.answer) - order.indexOf(b.answer));
  const well = done.filter((one) => one.answer === "well").length;
  show(at("checks"), done.length > 0);
  put(at("checks-count"), `${well} of ${done.length} came out well`);
  const signs = { wrong: "▲", not_known: "?", well: "✓" };
  lines(at("check-list"), sorted.map((one) => `${signs[one.answer]} ${one.at}, ${one.check}: ${one.words}. Proves: ${one.proves}`));
}

// Longer times can be chosen if they are kept.
function kept(history) {
  for (const label of document.querySelectorAll("#span label")) {
    const span = Number(label.querySelector("input").value);
    show(label, span <= 3_600_000 || (history !== null && span <= history.kept_ms));
  }
  const set_aside = history?.damaged.length ? `A damaged file of the history was set aside in ${history.folder}: ${history.damaged.join(", ")}. ` : "";
  const trouble = history?.trouble ? `${history.trouble}. Curves and incidents are in memory until it can.` : "";
  put(at("kept"), set_aside + trouble);
  show(at("kept"), Boolean(set_aside || trouble));
}

function render(state) {
  lostSince = undefined;
  show(at("lost"), false);
  document.body.classList.remove("lost");
  const { level, words, brief } = state.verdict;
  mark(at("verdict"), "data-level", level);
  put(at("mark"), MARKS[level]);
  const of = state.cluster ? `${state.cluster}: ` : "";
  put(at("words"), of + words);
  // Read aloud only when something else is the matter, not with each figure.
  put(at("spoken"), of + brief);
  document.title = `${MARKS[level]} ${of}${brief} · Lockstep`;
  put(at("news"), `${clock(state.at_ms)} ${zone(state.at_ms)}, every ${state.every_s} s`);
  put(at("version"), `· lockstep ${state.version}, looks back ${state.window_s} s${state.heartbeat ? ", with heartbeat" : ""}`);
  kept(state.history);
  causes(state.diagnosis.findings);
  checks(state.diagnosis.checks);
  failover(state.diagnosis.failover);
  topology(state);
  replicas(at("link-list"), state, news, !document.hidden);
  servers(state);
}

function lost(since, why) {
  const when = since === null ? "" : ` since ${clock(since)} ${zone(since)}`;
  const words = `No news${when}: ${why}. ${since === null ? "" : "What is below is old. "}Trying again.`;
  if (lostSince === words) return;
  lostSince = words;
  put(at("lost"), words);
  show(at("lost"), true);
  document.body.classList.add("lost");
  mark(at("verdict"), "data-level", "starting");
  put(at("mark"), "?");
  document.title = `? No news${when} · Lockstep`;
}

function cluster() {
  const sign = el("span", { class: "sign", "aria-hidden": "true" });
  const link = el("a");
  return { root: el("li", {}, sign, link), sign, link };
}

// Every cluster with a sign of its own, if there are several; each is a link to its page.
async function clusters() {
  try {
    const all = await allClusters();
    show(at("clusters"), all.length > 1);
    if (all.length < 2) return;
    const chosen = CLUSTER ?? all[0].name;
    sync(at("cluster-list"), all, (one) => one.name, cluster, (shown, one) => {
      mark(shown.root, "data-level", one.verdict.level);
      put(shown.sign, MARKS[one.verdict.level]);
      put(shown.link, one.name);
      mark(shown.link, "href", `?cluster=${encodeURIComponent(one.name)}`);
      mark(shown.link, "title", one.verdict.brief);
      mark(shown.link, "aria-current", one.name === chosen ? "page" : "false");
    });
  } catch {
    // That nothing answers is told by the news.
  }
}

function redraw() {
  if (!news.state) return;
  topology(news.state);
  drawAll(at("link-list"), news.state, news);
}

const news = new News(render, lost, incidents);
at("span").addEventListener("change", (event) => news.show(Number(event.target.value)));
document.addEventListener("visibilitychange", () => !document.hidden && redraw());
new ResizeObserver(redraw).observe(at("link-list"));
// A browser that goes back to this page keeps what was chosen.
const chosen = document.querySelector("#span input:checked");
if (chosen && Number(chosen.value) !== news.span) news.show(Number(chosen.value));
clusters();
setInterval(() => !document.hidden && clusters(), 2000);
