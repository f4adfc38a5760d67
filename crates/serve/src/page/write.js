// Elements, lists that keep their elements, and figures as people read them. Text is always
// inserted as text: much of it comes from servers.

export function el(tag, about = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(about)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Writes only what has changed: selections stay, and nothing is read aloud again.
export function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function mark(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

export function show(element, shown) {
  if (element.hidden === shown) element.hidden = !shown;
}

// Makes the children of `parent` those of `items`: elements stay as long as their keys do, and
// so do focus and what is open.
export function sync(parent, items, keyOf, make, update) {
  const old = parent.kept ?? new Map();
  const kept = new Map();
  for (const item of items) {
    let key = keyOf(item);
    while (kept.has(key)) key += "'";
    const entry = old.get(key) ?? make(item);
    kept.set(key, entry);
    update(entry, item);
  }
  for (const [key, entry] of old) if (!kept.has(key)) entry.root.remove();
  const focused = document.activeElement;
  let next = parent.firstElementChild;
  for (const entry of kept.values()) {
    if (entry.root === next) next = next.nextElementSibling;
    else parent.insertBefore(entry.root, next);
  }
  if (focused !== document.activeElement && focused?.isConnected) focused.focus();
  parent.kept = kept;
}

// A list of lines of text.
export function lines(parent, texts, tag = "li") {
  const items = texts.map((text, index) => [String(index), text]);
  sync(parent, items, ([key]) => key, () => ({ root: el(tag) }), ({ root }, [, text]) => put(root, text));
}

// Names and values, long ones on a line of their own; those without a value are left out.
export function pairs(parent, rows) {
  const known = rows.filter(([, value]) => value !== null && value !== undefined && value !== "");
  const make = () => {
    const name = el("dt");
    const value = el("dd");
    return { root: el("div", {}, name, value), name, value };
  };
  const update = (entry, [name, value]) => {
    put(entry.name, name);
    put(entry.value, value);
    entry.root.classList.toggle("wide", value.length > 16);
  };
  sync(parent, known, ([name]) => name, make, update);
}

export function seconds(ms) {
  if (ms < 0.5) return "0 ms";
  if (ms < 999.5) return `${ms.toFixed(0)} ms`;
  if (ms < 9_950) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 120_000) return `${(ms / 1000).toFixed(0)} s`;
  if (ms < 7_200_000) return `${(ms / 60_000).toFixed(0)} min`;
  return `${(ms / 3_600_000).toFixed(0)} h`;
}

// For how long a replica has been behind: at least, or at most, where no more is known.
export function lag(link) {
  const sign = link.lag_is_least ? "≥ " : link.lag_is_most ? "≤ " : "";
  return `${sign}${seconds(link.lag_ms)}`;
}

// What a replica's readers see, if that is old although it keeps up with its upstream.
export function age(link) {
  const all = link.behind_primary;
  return all?.behind && !link.behind ? `its data is ${lag(all)} old: keeps up with ${link.upstream}` : "";
}

// A name of at most `most` characters, without its middle if it is longer: names often differ at their ends.
export function cut(name, most) {
  const letters = [...name];
  if (letters.length <= most) return name;
  const end = Math.max(0, Math.floor((most - 1) / 2));
  return `${letters.slice(0, Math.max(0, most - end - 1)).join("")}…${letters.slice(letters.length - end).join("")}`;
}

// A subscription that commits asynchronously, as all do by default, while no commit waits for it.
export function aside(found) {
  return found.severity === "note" && found.cause === "asynchronous_apply_commit";
}

export function bytes(count) {
  const sign = count < 0 ? "-" : "";
  let value = Math.abs(count);
  if (value < 1024) return `${sign}${value.toFixed(0)} bytes`;
  for (const unit of ["kB", "MB", "GB", "TB"]) {
    value /= 1024;
    if (value < 1024 || unit === "TB") return `${sign}${value < 9.95 ? value.toFixed(1) : value.toFixed(0)} ${unit}`;
  }
  return "";
}

const TIME = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const ZONE = new Intl.DateTimeFormat(undefined, { timeZoneName: "short" });

// The zone in which times are shown, such as UTC or GMT+2.
export function zone(ms) {
  return ZONE.formatToParts(new Date(ms)).find((part) => part.type === "timeZoneName")?.value ?? "";
}

export function clock(ms) {
  return TIME.format(new Date(ms));
}

const DAY = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });

// A time in words, with its day where `span` milliseconds may cross one.
export function moment(ms, span = 0) {
  const sameDay = new Date(ms).toDateString() === new Date().toDateString();
  return sameDay && span < 86_400_000 ? clock(ms) : DAY.format(new Date(ms));
}

export function version(number) {
  return number ? `PostgreSQL ${Math.floor(number / 10_000)}.${number % 100}` : "";
}

// Bytes from one position such as 0/16B3748 to a later one.
export function between(from, to) {
  if (!from || !to) return null;
  const number = (lsn) => {
    const [high, low] = lsn.split("/");
    return BigInt(`0x${high}`) * 4294967296n + BigInt(`0x${low}`);
  };
  const difference = number(to) - number(from);
  return difference > 0n ? Number(difference) : 0;
}
