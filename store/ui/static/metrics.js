// Any of the learner's metrics: a picker with a search box, one chart each, smoothed. What is chosen is in the address.

import { lineChart } from "./charts.js";
import { empty, h } from "./dom.js";
import { metricPicker } from "./metric_picker.js";
import { fill, panel } from "./panel.js";
import { change } from "./place.js";

const DEFAULTS = ["actor/entropy", "actor/grad_norm", "response_length/mean", "learner/idle_share"];
const MOST = 24; // metrics at a time, as the server has it
const HEIGHT = 164;

/**
 * A picker and a grid of charts. `listMetrics` gives those that there are, `{name, title, unit, about, group}`,
 * `loadSeries(names)` for each name its series `{name, colour, points}`, and `axis` the axis of their points.
 */
export function metricCharts({ listMetrics, loadSeries, axis, query, signal }) {
  const grid = h("div", { class: "grid" });
  const picker = metricPicker((chosen) => ask(change({ metrics: chosen.join(",") }, true)), MOST);
  const smoothing = smoothingField((weight) => ask(change({ smooth: weight }, false)));
  const box = panel("Metrics of the learner", { name: "metrics", about: "Values of each training step; a dot marks a step where few steps have the metric.", extra: h("div", { class: "metric-tools" }, smoothing.root, picker.root) });
  let params = query, known = [], series = {}, boxes = new Map();

  const chosen = () => (params.get("metrics")?.split(",") ?? DEFAULTS.filter((name) => known.some((metric) => metric.name === name))).slice(0, MOST);

  /** Asks the store again. */
  async function load() {
    await fill({ show: () => box.show(grid), fail: box.fail }, async () => {
      known = await listMetrics();
      picker.set(known, chosen());
      series = chosen().length ? await loadSeries(chosen()) : {};
      if (!signal.aborted) draw();
    }, signal);
  }

  function draw() {
    boxes = new Map(chosen().map((name) => [name, boxes.get(name) ?? metricBox(name, known.find((metric) => metric.name === name))]));
    if (![...boxes.values()].every((item, place) => grid.children[place] === item.root) || grid.children.length !== boxes.size) {
      grid.replaceChildren(...[...boxes.values()].map((item) => item.root));
    }
    if (!boxes.size) grid.replaceChildren(empty(known.length ? "No metric is chosen." : "Nothing yet: metrics come with the first training step."));
    const weight = Number(params.get("smooth") ?? 0);
    for (const [name, item] of boxes) item.show(metricChart(item.title, series[name] ?? [], axis(), weight));
  }

  function ask(next) {
    const changed = (name) => next.get(name) !== params.get(name);
    const [isOther, isSmoother] = [changed("metrics"), changed("smooth")];
    params = next;
    smoothing.set(params.get("smooth") ?? "0");
    if (isOther) load().catch(() => {}); // it stands in the panel
    else if (isSmoother) draw();
  }

  smoothing.set(params.get("smooth") ?? "0");
  return { root: box.root, load, ask };
}

function metricBox(name, { title = name, unit = "", about = "" } = {}) {
  const box = panel(title, { about: about ? `${about} (${unit})` : "", height: HEIGHT + 24 });
  box.root.classList.add("third", "metric");
  box.root.dataset.metric = name;
  return { ...box, title };
}

function metricChart(name, series, x, weight) {
  const drawn = weight ? series.flatMap((item) => [{ ...item, faint: true }, { ...item, points: smooth(item.points, weight) }]) : series;
  return lineChart({ name, series: drawn, x, y: { label: "" }, height: HEIGHT }) ?? empty("No step has this metric.");
}

/** An exponential moving average without the bias of its beginning; `weight` is that of the past, from 0 to below 1. */
export function smooth(points, weight) {
  let sum = 0, total = 0;
  return points.map((point) => {
    if (point.y === null) return point;
    sum = weight * sum + (1 - weight) * point.y;
    total = weight * total + (1 - weight);
    return { ...point, y: sum / total };
  });
}

function smoothingField(changed) {
  const input = h("input", { type: "range", name: "smooth", min: 0, max: 0.95, step: 0.05, input: () => changed(input.value === "0" ? "" : input.value) });
  return { root: h("label", { class: "smoothing" }, "smoothing", input), set: (value) => { input.value = value; } };
}
