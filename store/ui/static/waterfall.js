// A trace as bars over time, nested as its spans are, with all that is known of the one that is chosen.

import { h, pairs, pretty, showTip, table } from "./dom.js";
import { clock, seconds } from "./format.js";
import { change } from "./place.js";

const CUT = 0.15; // of the busy time: a longer gap is cut short
const GAP = 0.05; // of the busy time is left of it
const ROOM = 0.02;
const INDENT = 14; // pixels a level
const DEEPEST = 12; // levels that are drawn as such
const EMITTED = new Set(["reward", "annotation", "message", "object", "exception"]);

/** The waterfall and, under it, the chosen span: the one with that id, else none. */
export function waterfall({ spans, attempt }, chosen) {
  const rows = nested(spans);
  const time = compressed(spans);
  const detail = h("div", { class: "span-detail" });
  const buttons = new Map();
  const choose = (span) => {
    for (const [id, button] of buttons) button.setAttribute("aria-pressed", String(id === span.span_id));
    detail.replaceChildren(described(span, attempt));
    change({ span: span.span_id }, false);
  };
  const list = h("ol", { class: "waterfall" }, axis(time), rows.map(({ span, depth }) => {
    const button = bar(span, depth, time, () => choose(span));
    buttons.set(span.span_id, button);
    return h("li", {}, button);
  }));
  const first = spans.find((span) => span.span_id === chosen);
  if (first) queueMicrotask(() => choose(first));
  else detail.append(h("p", { class: "hint" }, "Click a bar for its attributes, status and events."));
  return h("div", {}, list, detail);
}

/** Spans in the order of a tree read from the top, each with its depth. */
export function nested(spans) {
  const children = new Map();
  for (const span of spans) children.set(span.parent, [...(children.get(span.parent) ?? []), span]);
  const rows = [];
  const waiting = (children.get("") ?? []).map((span) => ({ span, depth: 0 })).reverse();
  while (waiting.length) { // however deep it is
    const row = waiting.pop();
    rows.push(row);
    waiting.push(...(children.get(row.span.span_id) ?? []).map((span) => ({ span, depth: row.depth + 1 })).reverse());
  }
  return rows;
}

/** A scale from time to a share of the width: as time goes, but a long gap without any span is short. */
function compressed(spans) {
  const busy = [];
  for (const { start_ms: start, end_ms: end } of [...spans].sort((a, b) => a.start_ms - b.start_ms)) {
    const last = busy.at(-1);
    if (last && start <= last.end) last.end = Math.max(last.end, end);
    else busy.push({ start, end });
  }
  const work = Math.max(busy.reduce((sum, item) => sum + item.end - item.start, 0), 0.001);
  const pieces = []; // of time, each with its place
  let at = 0;
  busy.forEach((item, place) => {
    const before = busy[place - 1];
    if (before) {
      const gap = item.start - before.end;
      const cut = gap > CUT * work;
      pieces.push({ from: before.end, to: item.start, at, width: cut ? GAP * work : gap, cut });
      at += pieces.at(-1).width;
    }
    pieces.push({ from: item.start, to: item.end, at, width: item.end - item.start, cut: false });
    at += item.end - item.start;
  });
  const all = Math.max(at, 0.001);
  const scale = (ms) => {
    const piece = pieces.find((item) => ms <= item.to) ?? pieces.at(-1);
    const share = piece.to > piece.from ? (ms - piece.from) / (piece.to - piece.from) : 0;
    return (1 - ROOM) * ((piece.at + Math.max(0, share) * piece.width) / all);
  };
  return { scale, pieces, start: pieces[0].from, work };
}

function axis({ scale, pieces, start, work }) {
  const marks = pieces.filter((item) => item.cut).map((item) => h("span", {
    class: "gap", style: { left: percent(scale(item.from)), width: percent(scale(item.to) - scale(item.from)) }, title: `${seconds((item.to - item.from) / 1000)} in which nothing happened`,
  }));
  const ticks = pieces.filter((item) => !item.cut && item.width > 0.12 * work).map((item) => h("span", { class: "tick", style: { left: percent(scale(item.from)) } }, `+${seconds((item.from - start) / 1000)}`));
  return h("li", { class: "axis" }, h("span", {}, "kind"), h("span", {}, "span"), h("span", { class: "track" }, marks, ticks), h("span", { class: "length" }, "took"));
}

const percent = (share) => `${(100 * share).toFixed(3)}%`;

function bar(span, depth, { scale, pieces }, choose) {
  const left = scale(span.start_ms), width = Math.max(0.002, scale(span.end_ms) - left);
  const gaps = pieces.filter((item) => item.cut).map((item) => h("span", { class: "gap", style: { left: percent(scale(item.from)), width: percent(scale(item.to) - scale(item.from)) } }));
  const length = h("span", { class: "length" }, seconds((span.end_ms - span.start_ms) / 1000));
  return h("button", {
    type: "button", class: span.status === "error" ? "bar error" : "bar", data: { span: span.span_id, what: span.what }, "aria-pressed": "false", click: choose,
    pointermove: (event) => showTip(pairs(inShort(span)), event.clientX, event.clientY), pointerleave: () => showTip(null),
  },
  h("span", { class: "kind" }, span.what === "other" ? "" : span.what),
  h("span", { class: "what", style: { paddingLeft: `${Math.min(depth, DEEPEST) * INDENT}px` } }, depth ? h("span", { class: "elbow" }, "└ ") : null, label(span)),
  h("span", { class: "track" }, gaps, h("span", { class: "fill", style: { left: percent(left), width: percent(width) } })), length);
}

/** What a span is called; of what an agent emitted, what it says. */
function label(span) {
  const bad = span.status === "error" ? h("span", { class: "bad" }, " !") : null;
  if (EMITTED.has(span.what) && span.gist) return [span.gist, bad];
  const title = span.title && !span.name.includes(span.title) ? ` ${span.title}` : "";
  return [span.name, title, isCall(span) ? h("span", { class: "quiet" }, ` call ${span.call}`) : null, bad];
}

const isCall = (span) => span.call !== null && span.scope === "lightningbus.runners";
const statusOf = (span) => [span.status, span.status_message].filter(Boolean).join(": ") || "unset";
const inShort = (span) => [
  ["span", span.name], ["kind", span.what], ...(span.gist ? [["says", span.gist]] : []),
  ["took", seconds((span.end_ms - span.start_ms) / 1000)], ["status", statusOf(span)],
];

function described(span, attempt) {
  const from = attempt ? [["after the attempt began", seconds((span.start_ms - attempt.started_ms) / 1000)]] : [];
  const events = parsed(span.events);
  return h("div", {},
    h("h3", {}, span.name),
    pairs([
      ["kind", [span.what, span.title].filter(Boolean).join(" ")],
      ...(span.call === null ? [] : [[isCall(span) ? "model call" : "of model call", `call ${span.call}`]]),
      ...(span.placed ? [["hangs here because", span.placed]] : []),
      ["status", h("span", { class: span.status === "error" ? "bad" : "" }, statusOf(span))],
      ["took", seconds((span.end_ms - span.start_ms) / 1000)], ["began", clock(span.start_ms, true)],
      ...(from.length && span.start_ms >= attempt.started_ms ? from : []), ["span kind", span.kind], ["scope", span.scope || "–"], ["span", span.span_id],
    ]),
    Object.entries(span.payload_keys).map(([part, name]) => h("div", { class: "payload" }, h("h4", {}, part), h("pre", { tabindex: "0" }, pretty(span.attributes[name])))),
    attributes("Attributes", without(span.attributes, Object.values(span.payload_keys))), attributes("Resource", span.resource),
    events.length ? h("div", { class: "all-width" }, h("h4", {}, "Events"), table([
      { title: "event", cell: (item) => String(item.name ?? "") },
      { title: "says", class: "doing", cell: (item) => JSON.stringify(item.attributes ?? {}) },
    ], events)) : null);
}

const without = (values, names) => Object.fromEntries(Object.entries(values).filter(([name]) => !names.includes(name)));

function attributes(title, values) {
  const names = Object.keys(values).sort();
  if (!names.length) return null;
  return h("div", {}, h("h4", {}, title), h("dl", { class: "pairs all" }, names.map((name) => [h("dt", {}, name), h("dd", {}, values[name])])));
}

function parsed(text) {
  try {
    const values = JSON.parse(text || "[]");
    return Array.isArray(values) ? values : [];
  } catch {
    return [{ name: text }];
  }
}
