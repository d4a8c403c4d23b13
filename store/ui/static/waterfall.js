// A trace as bars over time, nested as its spans are, with all that is known of the one that is chosen.

import { h, pairs, showTip, table } from "./dom.js";
import { clock, seconds } from "./format.js";
import { change } from "./place.js";

const CUT = 0.15; // of the busy time: a longer gap is cut short
const GAP = 0.05; // of the busy time is left of it
const ROOM = 0.02;

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

/** Spans in the order of a tree read from the top, each with its depth; one whose parent is unknown is a root. */
export function nested(spans) {
  const known = new Set(spans.map((span) => span.span_id));
  const children = new Map();
  for (const span of spans) {
    const parent = known.has(span.parent_span_id) && span.parent_span_id !== span.span_id ? span.parent_span_id : "";
    children.set(parent, [...(children.get(parent) ?? []), span]);
  }
  const rows = [], seen = new Set();
  const walk = (parent, depth) => {
    for (const span of children.get(parent) ?? []) {
      if (seen.has(span.span_id)) continue;
      seen.add(span.span_id);
      rows.push({ span, depth });
      walk(span.span_id, depth + 1);
    }
  };
  walk("", 0);
  for (const span of spans) if (!seen.has(span.span_id)) rows.push({ span, depth: 0 }); // spans that are each other's parents
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
  const work = Math.max(busy.reduce((sum, one) => sum + one.end - one.start, 0), 0.001);
  const pieces = []; // of time, each with its place
  let at = 0;
  busy.forEach((one, place) => {
    const before = busy[place - 1];
    if (before) {
      const gap = one.start - before.end;
      const cut = gap > CUT * work;
      pieces.push({ from: before.end, to: one.start, at, width: cut ? GAP * work : gap, cut });
      at += pieces.at(-1).width;
    }
    pieces.push({ from: one.start, to: one.end, at, width: one.end - one.start, cut: false });
    at += one.end - one.start;
  });
  const all = Math.max(at, 0.001);
  const scale = (ms) => {
    const piece = pieces.find((one) => ms <= one.to) ?? pieces.at(-1);
    const share = piece.to > piece.from ? (ms - piece.from) / (piece.to - piece.from) : 0;
    return (1 - ROOM) * ((piece.at + Math.max(0, share) * piece.width) / all);
  };
  return { scale, pieces, start: pieces[0].from, work };
}

function axis({ scale, pieces, start, work }) {
  const marks = pieces.filter((one) => one.cut).map((one) => h("span", {
    class: "gap", style: { left: percent(scale(one.from)), width: percent(scale(one.to) - scale(one.from)) }, title: `${seconds((one.to - one.from) / 1000)} in which nothing happened`,
  }));
  const ticks = pieces.filter((one) => !one.cut && one.width > 0.12 * work).map((one) => h("span", { class: "tick", style: { left: percent(scale(one.from)) } }, `+${seconds((one.from - start) / 1000)}`));
  return h("li", { class: "axis" }, h("span", {}, "span"), h("span", { class: "track" }, marks, ticks));
}

const percent = (share) => `${(100 * share).toFixed(3)}%`;

function bar(span, depth, { scale, pieces }, choose) {
  const left = scale(span.start_ms), width = Math.max(0.002, scale(span.end_ms) - left);
  const gaps = pieces.filter((one) => one.cut).map((one) => h("span", { class: "gap", style: { left: percent(scale(one.from)), width: percent(scale(one.to) - scale(one.from)) } }));
  const length = h("span", { class: "length", style: beside(left, width) }, seconds((span.end_ms - span.start_ms) / 1000));
  return h("button", {
    type: "button", class: `bar ${kindOf(span)}`, data: { span: span.span_id }, "aria-pressed": "false", click: choose,
    pointermove: (event) => showTip(pairs(inShort(span)), event.clientX, event.clientY), pointerleave: () => showTip(null),
  },
  h("span", { class: "what", style: { paddingLeft: `${depth * 16}px` } }, depth ? h("span", { class: "elbow" }, "└ ") : null, span.name, span.status === "error" ? h("span", { class: "bad" }, " !") : null),
  h("span", { class: "track" }, gaps, h("span", { class: "fill", style: { left: percent(left), width: percent(width) } }), length));
}

/** Where a bar's length stands: after it, before it where there is no room, in it where there is none either. */
function beside(left, width) {
  if (left + width < 0.8) return { left: percent(left + width + 0.006) };
  return left > 0.15 ? { right: percent(1 - left + 0.006) } : { right: percent(1 - left - width + 0.006), color: "var(--card)" };
}

/** What a span is: of the agent's own instrumentation only what it calls itself is known. */
function kindOf(span) {
  const error = span.status === "error" ? " error" : "";
  const operation = span.attributes["gen_ai.operation.name"] ?? "";
  if (span.name.startsWith("train")) return `train-span${error}`;
  if (span.kind === "producer") return `publish${error}`;
  if (operation === "invoke_agent" || span.name.startsWith("invoke_agent")) return `agent${error}`;
  if (operation === "execute_tool" || span.name.startsWith("execute_tool")) return `tool${error}`;
  return (operation === "chat" || operation.endsWith("completion") || span.name.startsWith("chat") ? "model" : "other") + error;
}

const inShort = (span) => [["span", span.name], ["took", seconds((span.end_ms - span.start_ms) / 1000)], ["status", [span.status, span.status_message].filter(Boolean).join(": ")]];

function described(span, attempt) {
  const from = attempt ? [["after the attempt began", seconds((span.start_ms - attempt.started_ms) / 1000)]] : [];
  const events = parsed(span.events);
  return h("div", {},
    h("h3", {}, span.name),
    pairs([
      ["status", h("span", { class: span.status === "error" ? "bad" : "" }, [span.status, span.status_message].filter(Boolean).join(": ") || "unset")],
      ["took", seconds((span.end_ms - span.start_ms) / 1000)], ["began", clock(span.start_ms, true)],
      ...(from.length && span.start_ms >= attempt.started_ms ? from : []), ["kind", span.kind], ["said by", span.scope || "–"], ["span", span.span_id],
    ]),
    attributes("Attributes", span.attributes), attributes("Resource", span.resource),
    events.length ? h("div", { class: "all-width" }, h("h4", {}, "Events"), table([
      { title: "event", cell: (one) => String(one.name ?? "") },
      { title: "says", class: "doing", cell: (one) => JSON.stringify(one.attributes ?? {}) },
    ], events)) : null);
}

function attributes(title, found) {
  const names = Object.keys(found).sort();
  if (!names.length) return null;
  return h("div", {}, h("h4", {}, title), h("dl", { class: "pairs all" }, names.map((name) => [h("dt", {}, name), h("dd", {}, found[name])])));
}

function parsed(text) {
  try {
    const found = JSON.parse(text || "[]");
    return Array.isArray(found) ? found : [];
  } catch {
    return [{ name: text }];
  }
}
