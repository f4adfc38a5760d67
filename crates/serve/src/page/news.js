// What lockstep serve says: states as they come, and the history of each link.

const RETRY = 2000;
// The cluster that this page shows; null for the first.
export const CLUSTER = new URLSearchParams(location.search).get("cluster");

function of(path, query = "") {
  const parts = CLUSTER === null ? [] : [`cluster=${encodeURIComponent(CLUSTER)}`];
  if (query) parts.push(query);
  return parts.length ? `${path}?${parts.join("&")}` : path;
}

// All clusters, each with its verdict.
export async function allClusters() {
  return (await get("api/clusters")).clusters;
}

// The pool, if its agents are asked.
export async function askPool() {
  return get(of("api/pool"));
}
const POINTS = 300;

export class News {
  // `onState(state)`, `onLost(at, why)` with the time of the last state, or null, and
  // `onIncidents(list)`, the newest first.
  constructor(onState, onLost, onIncidents) {
    this.onState = onState;
    this.onIncidents = onIncidents;
    this.told = null;
    this.incidents = [];
    this.onLost = onLost;
    this.span = 300_000;
    this.moments = new Map();
    this.state = null;
    this.heard = 0;
    this.source = null;
    this.attempt = 0;
    setInterval(() => this.watch(), 1000);
    this.connect();
  }

  // Milliseconds of one point of a chart.
  get step() {
    return Math.max(1000, this.span / POINTS);
  }

  async show(span) {
    this.span = span;
    await this.connect();
  }

  // Everything anew: the state, the history, and then events.
  async connect() {
    const attempt = ++this.attempt;
    this.source?.close();
    this.source = null;
    this.heard = performance.now();
    try {
      const state = await get(of("api/state"));
      const history = await get(of("api/history", `since=${Math.max(0, state.at_ms - this.span)}&step=${this.step}`));
      if (attempt !== this.attempt) return;
      this.moments = new Map(history.links.map((link) => [link.id, link.moments]));
      this.take(state);
      this.listen(attempt);
    } catch (error) {
      if (attempt !== this.attempt) return;
      this.lose(error.why);
      setTimeout(() => attempt === this.attempt && this.connect(), RETRY);
    }
  }

  listen(attempt) {
    const source = new EventSource(of("api/events"));
    this.source = source;
    source.onmessage = (event) => {
      if (attempt === this.attempt) this.take(JSON.parse(event.data));
    };
    // Too many streams, or none any more: asking for the state tells which.
    source.onerror = () => {
      source.close();
      setTimeout(() => attempt === this.attempt && this.connect(), 100 + Math.random() * RETRY);
    };
  }

  take(state) {
    this.heard = performance.now();
    if (this.state?.number !== state.number || this.state?.at_ms !== state.at_ms) this.add(state);
    this.state = state;
    this.onState(state);
    // The file of the history was opened after this page.
    const opened = Boolean(state.history?.saved_ms);
    if (opened && this.opened === false) this.connect();
    this.opened = opened;
    if (state.incidents.changes !== this.told) this.tell(state.incidents.changes);
    else this.onIncidents(this.incidents.map((one) => state.incidents.open.find((open) => open.id === one.id) ?? one));
  }

  // Incidents are asked for when one begins, ends or gets another cause.
  async tell(changes) {
    this.told = changes;
    try {
      this.incidents = (await get(of("api/incidents"))).incidents;
      this.onIncidents(this.incidents);
    } catch {
      this.told = null;
    }
  }

  add(state) {
    const oldest = state.at_ms - this.span;
    for (const link of state.links) {
      const moments = this.moments.get(link.id) ?? [];
      const moment = {
        at_ms: state.at_ms,
        lag_ms: link.lag_ms,
        lag_bytes: link.lag_bytes,
        stage_bytes: link.stages.map((stage) => stage.bytes),
        visible_ms: link.visible_ms,
      };
      // A clock that was set back.
      while (moments.length && moments.at(-1).at_ms > moment.at_ms) moments.pop();
      const last = moments.at(-1);
      if (!last || last.at_ms < moment.at_ms) {
        const same = last && Math.floor(last.at_ms / this.step) === Math.floor(moment.at_ms / this.step);
        // The worst of each step stays, as in what the server sends.
        if (!same) moments.push(moment);
        else if (moment.lag_ms > last.lag_ms || moment.lag_bytes > last.lag_bytes) moments[moments.length - 1] = moment;
      }
      while (moments.length && moments[0].at_ms < oldest) moments.shift();
      this.moments.set(link.id, moments);
    }
  }

  // A connection may be dead without an error.
  watch() {
    const patience = Math.max(6000, 3000 * (this.state?.every_s ?? 1) + 3000);
    if (performance.now() - this.heard > patience) {
      this.lose();
      this.connect();
    }
  }

  lose(why = "lockstep serve does not answer") {
    this.onLost(this.state?.at_ms ?? null, why);
  }
}

async function get(address) {
  const answer = await fetch(address, { cache: "no-store", signal: AbortSignal.timeout(10_000) });
  if (answer.status === 401) throw Object.assign(new Error(address), { why: "lockstep serve asks for a login, so reload this page" });
  if (!answer.ok) throw Object.assign(new Error(address), { why: `lockstep serve answers with status ${answer.status}` });
  return answer.json();
}
