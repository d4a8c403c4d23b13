// A set of rollouts: those of training, or those of one evaluation. Their figures are never put together.

import { h } from "./dom.js";

const EVALUATION_COLOURS = ["var(--two)", "var(--three)", "var(--four)", "var(--five)"];

/** Its name: the evaluation's, else the mode. */
export const setName = (row) => row.evaluation || row.mode;

/** Its name on a coloured ground. */
export const setChip = (row) => h("span", { class: `chip ${row.mode}` }, setName(row));

/** The sets of some rows, training first: `{name, mode, colour, rows}`. */
export function rolloutSets(rows) {
  const sets = new Map();
  for (const row of rows) {
    if (!sets.has(setName(row))) sets.set(setName(row), { name: setName(row), mode: row.mode, rows: [] });
    sets.get(setName(row)).rows.push(row);
  }
  const ordered = [...sets.values()].sort((a, b) => (a.mode === b.mode ? a.name.localeCompare(b.name) : a.mode === "train" ? -1 : 1));
  let evaluations = 0;
  for (const set of ordered) set.colour = set.mode === "train" ? "var(--one)" : EVALUATION_COLOURS[evaluations++ % EVALUATION_COLOURS.length];
  return ordered;
}
