// The charts of a run: what each draws from the rows of its question.

import { bars, legend } from "./bars.js";
import { lineChart, timeAxis } from "./charts.js";
import { empty, h } from "./dom.js";
import { clock, count, figure, reward, seconds, share } from "./format.js";
import { rolloutSets } from "./rollout_set.js";
import { AXES } from "./x_axis.js";

const HEIGHT = 164;
const WAITING = "Nothing yet: figures come with the first";
const LEAST_SECONDS = 1e-3; // a bar as long as the row is at least so much
const LEAST_NATS = 1e-5; // less is the noise of arithmetic
const COLOURS = ["var(--one)", "var(--two)", "var(--three)", "var(--four)", "var(--five)"];
const MARKS = ["diamond", "circle", "square", "triangle"];
/** Names of steps or versions that are drawn as one point. */
export const span = (first, width) => (width > 1 ? `${first}–${first + width - 1}` : String(first));
export const colourOf = (index) => COLOURS[index % COLOURS.length];
const markOf = (index) => MARKS[index % MARKS.length];

/**
 * Mean reward with its standard error: training as a line in a band, each evaluation as marks. `place` gives the x of a
 * version, `colour` and `name` say how a set is drawn.
 */
export function rewardSeries(rows, { place = (version) => version, colour = (set) => set.colour, name = (set) => set.name } = {}) {
  const sets = rolloutSets(rows);
  const evaluations = sets.filter((set) => set.mode !== "train");
  return sets.map((set) => ({
    name: name(set),
    colour: colour(set),
    marks: set.mode === "train" ? undefined : markOf(evaluations.indexOf(set)),
    points: set.rows.map((row) => {
      const around = row.standard_error ?? 0;
      return {
        x: place(row.version),
        y: row.mean_reward,
        num: row.rollouts,
        ...(row.mean_reward === null ? {} : { low: Math.max(row.worst, row.mean_reward - around), high: Math.min(row.best, row.mean_reward + around) }),
        of: AXES.version.title,
        title: span(row.version, row.per_point),
        label: `${reward(row.mean_reward)}${row.standard_error === null ? "" : ` ± ${figure(around)}`} of ${count(row.rollouts)}`,
      };
    }),
  }));
}

export function rewardChart(series, x, height = 290, name = "mean reward") {
  return lineChart({ name, series, x, y: { label: name === "mean reward" ? name : "" }, height })
    ?? empty(`${WAITING} rollouts that end.`);
}

/** Metrics of one name as points; `place` gives the x of a step. */
export const pointsOf = (rows, place) => rows.map((row) => ({ x: place(row.step), y: row.value, of: AXES.step.title, title: span(row.step, row.per_point) }));

/** A chart of some metrics of a model, `{metric: [name, colour]}`. */
function metricChart(rows, metrics, places, y) {
  const series = Object.entries(metrics).map(([metric, [name, colour]]) => ({ name, colour, points: pointsOf(rows.filter((row) => row.name === metric), places.at) }));
  return lineChart({ series, x: places.axis(), y, height: HEIGHT }) ?? empty(`${WAITING} training step.`);
}

const STALENESS = {
  "staleness/max": ["largest staleness", "var(--two)"], "staleness/mean": ["mean staleness", "var(--one)"],
  "off_policy/ess": ["effective sample size", "var(--three)"],
};
const DRIFT = { "rollout_corr/k3_kl": ["to the engine, k3", "var(--one)"], "actor/ppo_kl": ["of the update", "var(--two)"] };
export const STEP_METRICS = [...Object.keys(STALENESS), ...Object.keys(DRIFT)];

export const stalenessChart = (rows, places) => metricChart(rows, STALENESS, places.step, { label: "versions, share", min: 0 });
export const driftChart = (rows, places) => metricChart(rows, DRIFT, places.step, { label: "nats", min: 0, span: LEAST_NATS });

/** Intervals that the run filled at least by half; all where there are few. */
const filled = (rows) => (rows.length > 2 ? rows.filter((row) => row.seconds >= row.bucket_seconds / 2) : rows);

export function throughputChart(all) {
  const rows = filled(all);
  const points = (name) => rows.map((row) => ({
    x: row.start_ms, y: row[name] / Math.max(row.seconds, 1), title: clock(row.start_ms), label: `${figure(row[name] / Math.max(row.seconds, 1))} /s`,
  }));
  return lineChart({
    series: [{ name: "rollouts", colour: "var(--one)", points: points("rollouts") }, { name: "model calls", colour: "var(--two)", points: points("calls") }],
    x: timeAxis(rows.map((row) => row.start_ms)), y: { label: "per second", min: 0 }, height: HEIGHT,
  }) ?? empty(`${WAITING} rollouts.`);
}

export function idleChart(all) {
  const rows = filled(all);
  const nodes = [...new Set(rows.map((row) => row.node))];
  const idle = (row) => Math.min(1, Math.max(0, 1 - row.busy_seconds / row.seconds));
  return lineChart({
    series: nodes.map((node, place) => ({
      name: node, colour: colourOf(place),
      points: rows.filter((row) => row.node === node).map((row) => ({ x: row.start_ms, y: idle(row), title: clock(row.start_ms), label: share(idle(row)) })),
    })),
    x: timeAxis(rows.map((row) => row.start_ms)), y: { label: "share of time", min: 0, format: share }, height: HEIGHT,
  }) ?? empty(`${WAITING} model calls.`);
}

export function trainedBars(rows) {
  const bar = (row) => ({
    value: row.trained / row.ended, label: share(row.trained / row.ended), colour: "var(--one)",
    tip: `${seconds(row.min_seconds)} to ${seconds(row.max_seconds)}: ${count(row.trained)} of ${count(row.ended)} trained`,
  });
  return bars(rows.map((row) => ({ name: `up to ${seconds(row.max_seconds)}`, values: [bar(row)] })), { none: `${WAITING} training step.`, span: 1 });
}

const PARTS = { queue: "in the queue", model: "model calls", tool: "tools", agent: "the agent itself", publish: "being published" };

export function timeBars(rows) {
  const sets = rolloutSets(rows);
  const hasTools = rows.some((row) => row.part === "tool" && row.mean_seconds > 0); // else no span names a tool
  const parts = Object.entries(PARTS).filter(([part]) => hasTools || part !== "tool").map(([part, name]) => ({
    name: part === "agent" && !hasTools ? "the agent and its tools" : name,
    values: sets.flatMap((set) => set.rows.filter((row) => row.part === part).map((row) => ({
      value: row.mean_seconds, label: seconds(row.mean_seconds), colour: set.colour,
      tip: `${set.name}: mean ${seconds(row.mean_seconds)}, 95th percentile ${seconds(row.p95_seconds)}, ${count(row.rollouts)} rollouts`,
    }))),
  })).filter((item) => item.values.length);
  return h("div", {}, legend(sets), bars(parts, { none: `${WAITING} rollouts.`, span: LEAST_SECONDS }));
}

/** How the rollouts of each set ended, from the rows of the summary. */
export function outcomeBars(rows) {
  const sets = rolloutSets(rows);
  const outcomes = [...new Set(rows.flatMap((row) => Object.keys(row.outcomes)))].sort((a, b) => (b === "ok") - (a === "ok") || a.localeCompare(b));
  const values = (outcome) => sets.filter((set) => set.rows[0].outcomes[outcome]).map((set) => {
    const [{ outcomes: counts, rollouts }] = set.rows;
    return { value: counts[outcome] / rollouts, label: share(counts[outcome] / rollouts), colour: set.colour, tip: `${set.name}: ${count(counts[outcome])} of ${count(rollouts)}` };
  });
  return h("div", {}, legend(sets), bars(outcomes.map((outcome) => ({ name: outcome, values: values(outcome) })), { none: `${WAITING} rollouts.`, span: 1 }));
}
