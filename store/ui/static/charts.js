// Line charts in SVG: axes with names, a band for the spread, and the figures under the pointer.

import { empty, h, pairs, s, showTip } from "./dom.js";
import { figure } from "./format.js";

const MARGIN = { top: 10, right: 22, bottom: 36, left: 58 };

/**
 * `series`: `{name, colour, points: [{x, y, low, high}], steps}`; `x`, `y`: `{label, format, min, max}`.
 * Drawn for the width it has, and again when that changes.
 */
export function lineChart({ series, x, y, height = 220 }) {
  const drawn = series.map((item) => ({ ...item, points: item.points.filter((point) => point.y !== null) })).filter((item) => item.points.length);
  if (!drawn.length) return null;
  const root = h("div", { class: "chart", style: { height: `${height}px` } });
  const whole = h("div", {}, legend(drawn), root);
  new ResizeObserver(([seen]) => root.replaceChildren(picture(drawn, x, y, seen.contentRect.width, height))).observe(root);
  return whole;
}

/** Names of series beside their colours. */
export function legend(series) {
  return h("ul", { class: "legend" }, series.map((item) => h("li", {}, h("i", { class: "swatch", style: { background: item.colour } }), item.name)));
}

function picture(series, x, y, width, height) {
  const points = series.flatMap((item) => item.points);
  const inner = { width: Math.max(60, width - MARGIN.left - MARGIN.right), height: height - MARGIN.top - MARGIN.bottom };
  const across = scale(bounds(points.map((point) => point.x), x), MARGIN.left, MARGIN.left + inner.width);
  const heights = points.flatMap((point) => [point.y, point.low ?? point.y, point.high ?? point.y]);
  const up = scale(padded(bounds(heights, y), y), MARGIN.top + inner.height, MARGIN.top);
  const formatX = x.format ?? figure, formatY = y.format ?? figure;
  const svg = s("svg", { width, height, role: "img", "aria-label": `${y.label} over ${x.label}` });
  for (const tick of ticks(up.low, up.high, 4)) {
    svg.append(s("line", { class: "grid", x1: MARGIN.left, x2: MARGIN.left + inner.width, y1: up(tick), y2: up(tick) }),
      s("text", { class: "tick", x: MARGIN.left - 6, y: up(tick) + 3.5, "text-anchor": "end" }, formatY(tick)));
  }
  for (const tick of x.ticks?.(across.low, across.high) ?? ticks(across.low, across.high, Math.max(2, Math.floor(inner.width / 90)), x.whole)) {
    svg.append(s("text", { class: "tick", x: across(tick), y: height - 20, "text-anchor": "middle" }, formatX(tick)));
  }
  svg.append(s("text", { class: "axis", x: MARGIN.left + inner.width / 2, y: height - 4, "text-anchor": "middle" }, x.label),
    s("text", { class: "axis", transform: `translate(10 ${MARGIN.top + inner.height / 2}) rotate(-90)`, "text-anchor": "middle" }, y.label));
  for (const item of series) {
    if (item.points.some((point) => point.low !== undefined)) svg.append(band(item, across, up));
  }
  for (const item of series) svg.append(...line(item, across, up));
  const marks = s("g", {});
  svg.append(marks);
  svg.addEventListener("pointermove", (event) => point(event, svg, marks, series, across, up, { x, formatX, formatY, top: MARGIN.top, bottom: MARGIN.top + inner.height }));
  svg.addEventListener("pointerleave", () => { marks.replaceChildren(); showTip(null); });
  return svg;
}

function line(item, across, up) {
  if (item.points.length === 1) return [s("circle", { cx: across(item.points[0].x), cy: up(item.points[0].y), r: 3, fill: item.colour })];
  const at = item.points.map((point, place) => {
    const [px, py] = [across(point.x).toFixed(1), up(point.y).toFixed(1)];
    return place && item.steps ? `H${px}V${py}` : `${place ? "L" : "M"}${px} ${py}`;
  });
  return [s("path", { class: "line", d: at.join(""), stroke: item.colour })];
}

function band(item, across, up) {
  const top = item.points.map((point) => `${across(point.x).toFixed(1)} ${up(point.high ?? point.y).toFixed(1)}`);
  const bottom = item.points.map((point) => `${across(point.x).toFixed(1)} ${up(point.low ?? point.y).toFixed(1)}`).reverse();
  return s("path", { class: "band", d: `M${[...top, ...bottom].join("L")}Z`, fill: item.colour });
}

function point(event, svg, marks, series, across, up, how) {
  const at = event.clientX - svg.getBoundingClientRect().left;
  const near = series.map((item) => [item, nearest(item.points, at, across)]);
  const first = near.map(([, nearby]) => nearby).reduce((best, nearby) => (Math.abs(across(nearby.x) - at) < Math.abs(across(best.x) - at) ? nearby : best));
  const seen = near.filter(([, nearby]) => Math.abs(across(nearby.x) - across(first.x)) < 4);
  marks.replaceChildren(
    s("line", { class: "cursor", x1: across(first.x), x2: across(first.x), y1: how.top, y2: how.bottom }),
    ...seen.map(([item, nearby]) => s("circle", { cx: across(nearby.x), cy: up(nearby.y), r: 3.5, fill: item.colour, class: "mark" })));
  const rows = seen.map(([item, nearby]) => [item.name, nearby.label ?? how.formatY(nearby.y), item.colour]);
  showTip(pairs([[how.x.label, first.title ?? how.formatX(first.x)], ...rows]), event.clientX, event.clientY);
}

function nearest(points, at, across) {
  let low = 0, high = points.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (across(points[middle].x) < at) low = middle; else high = middle;
  }
  return Math.abs(across(points[low].x) - at) < Math.abs(across(points[high].x) - at) ? points[low] : points[high];
}

function bounds(values, axis) {
  const low = axis.min ?? values.reduce((a, b) => Math.min(a, b), Infinity);
  const high = axis.max ?? values.reduce((a, b) => Math.max(a, b), -Infinity);
  return low === high ? [low - (axis.min === undefined ? 0.5 : 0), high + 0.5] : [low, high];
}

function padded([low, high], axis) {
  const room = (high - low) * 0.06;
  return [axis.min === undefined ? low - room : low, axis.max === undefined ? high + room : high];
}

function scale([low, high], from, to) {
  const at = (value) => from + ((value - low) / (high - low)) * (to - from);
  return Object.assign(at, { low, high });
}

function ticks(low, high, about, whole = false) {
  const rough = (high - low) / about;
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 5, 10].map((nice) => nice * power).find((nice) => nice >= rough * 0.99);
  if (whole) step = Math.max(1, Math.round(step));
  const values = [];
  for (let place = Math.ceil(low / step - 1e-9); place * step <= high + step * 1e-9; place += 1) values.push(Number((place * step).toPrecision(12)));
  return values;
}

const MINUTE = 60_000;
const ROUND = [1 / 12, 1 / 6, 1 / 4, 1 / 2, 1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 10080].map((minutes) => minutes * MINUTE);

/** The axis of a chart over times, in milliseconds: round ones, with seconds where it is short. */
export function timeAxis(times) {
  const [low, high] = [Math.min(...times), Math.max(...times)];
  const step = ROUND.find((item) => (high - low) / item <= 5) ?? ROUND.at(-1);
  const short = { hour: "2-digit", minute: "2-digit", ...(step < MINUTE ? { second: "2-digit" } : {}) };
  return {
    label: "time",
    format: (ms) => (step < 1440 * MINUTE ? new Date(ms).toLocaleTimeString("en-GB", short) : new Date(ms).toLocaleDateString("sv-SE")),
    ticks: () => Array.from({ length: 12 }, (_, place) => (Math.ceil(low / step) + place) * step).filter((at) => at <= high),
  };
}

/** Parts of a whole, a row each: `{name, values: [{value, label, colour, tip}]}`, a bar for every value. */
export function bars(rows, none) {
  const most = Math.max(...rows.flatMap((row) => row.values.map((item) => item.value)), 0);
  if (!rows.length || most <= 0) return empty(none);
  return h("dl", { class: "bars" }, rows.map((row) => [
    h("dt", {}, row.name),
    row.values.map((item) => h("dd", { title: item.tip },
      h("span", {}, h("i", { style: { width: `${(100 * item.value) / most}%`, background: item.colour } })), item.label)),
  ]));
}
