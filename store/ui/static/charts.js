// Line charts by uPlot: axes that fit, a band for the spread, marks with error bars, and the figures under the pointer.

import { decimalSteps, haveRoom, labels, rangeX, rangeY, ticks } from "./axes.js";
import { h, pairs, showTip } from "./dom.js";
import { withRows } from "./download.js";
import { figure } from "./format.js";
import uPlot from "./vendor/uPlot.esm.js";

export { timeAxis } from "./axes.js";

const FONT = '11px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif';
const MARK = 3.5; // radius, in pixels
const FEW_POINTS = 0.5; // a line with a smaller share of the points that its chart has there has a dot at each
const NEAR = 10; // pixels from the pointer to a point that it is about
const ruler = document.createElement("canvas").getContext("2d");
ruler.font = FONT;
const hidden = new Map(); // names of the series that a reader has switched off, by chart

/**
 * `series`: `{name, colour, points: [{x, y, low, high, of, title, label}], steps, marks, faint}`; `x`, `y`: `{label, format}`.
 * A point may belong `of` something by name, as a weight version, which `title` names.
 * Marks are joined by nothing: circle, diamond, square or triangle. Null where there is no point.
 */
export function lineChart({ name, series, x, y, height = 220 }) {
  const drawn = series.map((item) => ({ ...item, points: item.points.filter((point) => point.y !== null) })).filter((item) => item.points.length);
  if (!drawn.length) return null;
  const chart = name ?? y.label;
  if (!hidden.has(chart)) hidden.set(chart, new Set());
  const off = hidden.get(chart);
  const root = h("div", { class: "chart", role: "img", "aria-label": `${chart} over ${x.label}`, style: { height: `${height}px` } });
  const toggle = (item, show) => {
    off[show ? "delete" : "add"](item.name);
    root.plot?.batch(() => drawn.filter((other) => other.name === item.name).forEach((other) => other.columns.forEach((column) => root.plot.setSeries(column, { show }))));
  };
  new ResizeObserver(([seen], observer) => {
    const { width } = seen.contentRect;
    if (!root.isConnected) {
      if (root.plot?.cursor.left >= 0) showTip(null);
      root.plot?.destroy();
      observer.disconnect();
    } else if (root.plot) root.plot.setSize({ width, height });
    else if (width) root.plot = plot(root, drawn, off, x, y, width, height);
  }).observe(root);
  const colourOf = (item) => { root.style.color = item.colour; return getComputedStyle(root).color; };
  Object.defineProperty(root, "series", { get: () => drawn.filter((item) => !item.faint && !off.has(item.name)).map((item) => ({ name: item.name, colour: colourOf(item) })) });
  withRows(root, () => drawn.filter((item) => !item.faint).flatMap((item) => item.points.map((point) => ({
    series: item.name, ...(x.origin === undefined ? { [x.label]: point.x } : { seconds: (point.x - x.origin) / 1000 }), ...(point.of && point.of !== x.label ? { [point.of]: point.title } : {}), value: point.y, ...(point.low === undefined ? {} : { low: point.low, high: point.high }), ...(point.num === undefined ? {} : { rollouts: point.num }),
  }))));
  return h("div", {}, h("div", { class: "chart-key" }, h("span", { class: "unit" }, y.label), switches(drawn, off, toggle)), root);
}

/** Names of series, where there are several, beside their colours; a click switches one off or on. */
function switches(series, off, toggle) {
  const named = series.filter((item) => !item.faint);
  if (named.length < 2) return null;
  return h("ul", { class: "legend" }, named.map((item) => h("li", {}, h("button", {
    type: "button", class: "toggle", "aria-pressed": String(!off.has(item.name)),
    click: ({ currentTarget: button }) => {
      button.setAttribute("aria-pressed", String(off.has(item.name)));
      toggle(item, off.has(item.name));
    },
  }, h("i", { class: `swatch ${item.marks ?? "line"}`, style: { background: item.colour } }), item.name))));
}

function plot(root, drawn, off, x, y, width, height) {
  const colour = (value) => { root.style.color = value; return getComputedStyle(root).color; };
  const { data, series, bands } = columns(drawn, off, colour);
  const values = new Set(drawn.map((item) => item.columns[0])); // the other columns are their edges
  const formatX = x.format ?? figure, formatY = y.format ?? figure;
  const measure = (text) => ruler.measureText(text).width;
  const origin = x.origin ?? 0;
  let hasTip = false;
  const splitX = (u, _, low, high) => {
    const pixels = u.bbox.width / devicePixelRatio / (high - low);
    const fits = (step, values) => haveRoom(values.map((value) => measure(formatX(value + origin))), step * pixels);
    return ticks(low - origin, high - origin, u.bbox.width / devicePixelRatio / 70, fits, x.steps ?? decimalSteps(low, high, x.whole)).map((value) => value + origin);
  };
  const splitY = (u, _, low, high) => ticks(low, high, u.bbox.height / devicePixelRatio / 34, () => true);
  const axis = { font: FONT, labelFont: FONT, stroke: () => colour("var(--quiet)"), ticks: { show: false }, space: 1 };
  const line = { stroke: () => colour("var(--line)"), width: 1 };
  return new uPlot({
    width, height, series, bands,
    legend: { show: false },
    padding: [6, measure(formatX(data[0].at(-1))) / 2 + 4, 0, 0],
    scales: { x: { time: false, range: () => rangeX(data[0][0], data[0].at(-1), x) }, y: { range: (_, low, high) => rangeY(low, high, y) } },
    axes: [
      { ...axis, label: x.label, labelSize: 16, labelGap: 0, size: 22, gap: 5, grid: { show: false }, border: { show: true, ...line }, splits: splitX, values: (_, values) => labels(values, formatX) },
      { ...axis, size: (_, values) => Math.max(24, ...(values ?? []).map((value) => measure(value) + 9)), gap: 6, grid: line, splits: splitY, values: (_, values) => labels(values, formatY) },
    ],
    cursor: { y: false, drag: { x: false, y: false }, points: { size: 2 * MARK }, dataIdx: (u, column, index, value) => (column && !values.has(column) ? null : nearestPoint(u, column, index, value)) },
    hooks: {
      draw: [(u) => drawn.filter((item) => item.marks).forEach((item) => drawMarks(u, item, colour(item.colour)))],
      setCursor: [(u) => {
        const figures = figuresAt(u, drawn, { x, formatX, formatY });
        if (figures || hasTip) showTip(figures, ...pointer(u));
        hasTip = figures !== null;
      }],
    },
  }, data, root);
}

/** uPlot's columns: x, then y, low and high of each series; `columns` of a series are their places. */
function columns(drawn, off, colour) {
  const xs = [...new Set(drawn.flatMap((item) => item.points.map((point) => point.x)))].sort((a, b) => a - b);
  const place = new Map(xs.map((value, index) => [value, index]));
  const data = [xs], series = [{}], bands = [];
  for (const item of drawn) {
    item.at = Array(xs.length).fill(null);
    for (const point of item.points) item.at[place.get(point.x)] = point;
    const show = !off.has(item.name);
    const add = (value, options) => {
      data.push(item.at.map((point) => (point ? value(point) : null)));
      series.push({ show, spanGaps: true, points: { show: false }, ...options });
      return data.length - 1;
    };
    const stroke = () => colour(item.colour);
    const paths = item.marks ? () => null : item.steps ? uPlot.paths.stepped({ align: 1 }) : undefined;
    item.columns = [add((point) => point.y, { stroke, width: 1.75, alpha: item.faint ? 0.3 : 1, paths, points: { show: !item.marks && item.points.length < FEW_POINTS * numWithin(xs, item.points) + 1, size: 1.5 * MARK } })];
    if (!item.points.some((point) => point.low !== undefined)) continue;
    const edge = { width: 0, stroke: "transparent", ...(item.marks ? { paths: () => null } : {}) };
    item.columns.push(add((point) => point.low ?? point.y, edge), add((point) => point.high ?? point.y, edge));
    if (!item.marks) bands.push({ series: [item.columns[2], item.columns[1]], fill: () => colour(`color-mix(in srgb, ${item.colour} 14%, transparent)`) });
  }
  return { data, series, bands };
}

/** How many values of x lie between the first and the last of some points. */
const numWithin = (xs, points) => xs.filter((x) => x >= points[0].x && x <= points.at(-1).x).length;

const CORNERS = { diamond: [[0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0]], square: [[-1, -1], [1, -1], [1, 1], [-1, 1]], triangle: [[0, -1.2], [1.2, 1], [-1.2, 1]] };

const SHIFTS = { diamond: -3, circle: 3, square: 0, triangle: 6 }; // pixels, so that marks of one value do not hide each other

function drawMarks(u, item, colour) {
  if (!u.series[item.columns[0]].show) return;
  const { ctx } = u, size = MARK * devicePixelRatio;
  Object.assign(ctx, { fillStyle: colour, strokeStyle: colour, lineWidth: 1.5 * devicePixelRatio });
  for (const { x, y, low, high } of item.points) {
    const left = u.valToPos(x, "x", true) + SHIFTS[item.marks] * devicePixelRatio, top = u.valToPos(y, "y", true);
    ctx.beginPath();
    if (low !== undefined) {
      ctx.moveTo(left, u.valToPos(low, "y", true));
      ctx.lineTo(left, u.valToPos(high, "y", true));
      ctx.stroke();
      ctx.beginPath();
    }
    if (CORNERS[item.marks]) CORNERS[item.marks].forEach(([right, down]) => ctx.lineTo(left + right * size, top + down * size));
    else ctx.arc(left, top, size, 0, 2 * Math.PI);
    ctx.fill();
  }
}

/** The index of a series' point nearest to the pointer, or null where it has none that is near. */
function nearestPoint(u, column, index, value) {
  if (!column || u.data[column][index] !== null) return index;
  const isNear = (place) => Math.abs(u.valToPos(u.data[0][place], "x") - u.valToPos(value, "x")) <= NEAR;
  for (let away = 1; ; away += 1) {
    const around = [index - away, index + away].filter((place) => place >= 0 && place < u.data[0].length && isNear(place));
    if (!around.length) return null;
    const nearest = around.find((place) => u.data[column][place] !== null);
    if (nearest !== undefined) return nearest;
  }
}

/** The figures of the points near the pointer, or null where there is none. */
function figuresAt(u, drawn, { x, formatX, formatY }) {
  if (!(u.cursor.left >= 0)) return null;
  const near = drawn.filter((item) => !item.faint && u.series[item.columns[0]].show)
    .map((item) => [item, item.at[u.cursor.idxs[item.columns[0]]]]).filter(([, point]) => point);
  if (!near.length) return null;
  const [[, first]] = near;
  const isOther = first.of !== undefined && first.of !== x.label;
  return pairs([[x.label, isOther ? formatX(first.x) : first.title ?? formatX(first.x)], ...(isOther ? [[first.of, first.title]] : []), ...near.map(([item, point]) => [item.name, point.label ?? formatY(point.y), item.colour])]);
}

/** Where the pointer is in the window. */
function pointer(u) {
  const area = u.over.getBoundingClientRect();
  return [area.left + u.cursor.left, area.top + u.cursor.top];
}

function redraw() {
  for (const chart of document.querySelectorAll(".chart")) chart.plot?.redraw(false);
}

new MutationObserver(redraw).observe(document.documentElement, { attributes: true }); // a theme is an attribute of the document
