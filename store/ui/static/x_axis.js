// What curves are drawn over: steps, versions, tokens, rollouts or time. Pure.

import { timeAxis } from "./axes.js";
import { figure } from "./format.js";

const whole = (value) => Math.round(value).toLocaleString("en-US");
const large = (value) => (value >= 1e6 ? `${figure(value / 1e6)} M` : value >= 1e4 ? `${figure(value / 1e3)} k` : whole(value));

/** Each by its name in the address: its column in the rows of the question `axes`, and the axis of a chart. */
export const AXES = {
  step: { column: "step", title: "training step", axis: () => ({ label: "training step", whole: true, format: whole }) },
  version: { column: "version", title: "weight version", axis: () => ({ label: "weight version", whole: true, format: whole }) },
  tokens: { column: "tokens", title: "trained tokens", axis: () => ({ label: "trained tokens", whole: true, format: large }) },
  rollouts: { column: "rollouts", title: "rollouts in batches", axis: () => ({ label: "rollouts in batches", whole: true, format: large }) },
  time: { column: "ended_ms", title: "wall time", axis: (times) => timeAxis(times) },
};

/**
 * Places of steps or versions on an axis, from a model's rows of the question `axes`. `by` is step or version.
 * Between two rows it is interpolated; before the first step nothing is trained. Without a row a value is its own place.
 */
export function placesOn(name, rows, by) {
  const { column, axis } = AXES[name] ?? AXES.step;
  if (!rows.length || !(rows.at(-1)[column] > 0)) return { at: (value) => value, axis: () => AXES[by].axis() };
  const first = rows[0];
  const start = { step: 0, version: Math.max(0, first.version - first.step), tokens: 0, rollouts: 0, ended_ms: first.started_ms };
  const known = [start, ...rows];
  const origin = column === "ended_ms" ? first.started_ms : 0;
  const at = (value) => {
    const after = known.findIndex((row) => row[by] >= value);
    if (after < 0) return known.at(-1)[column] - origin;
    if (after === 0 || known[after][by] === value) return known[after][column] - origin;
    const [low, high] = [known[after - 1], known[after]];
    return low[column] + ((value - low[by]) / (high[by] - low[by])) * (high[column] - low[column]) - origin;
  };
  return { at, axis: () => axis([0, known.at(-1)[column] - origin]) };
}
