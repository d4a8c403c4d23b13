// Bars in HTML: parts of a whole, a row each.

import { empty, h } from "./dom.js";
import { withRows } from "./download.js";

/** Names of sets beside their colours. */
export function legend(sets) {
  return h("ul", { class: "legend" }, sets.map((set) => h("li", {}, h("i", { class: "swatch", style: { background: set.colour } }), set.name)));
}

/** Rows `{name, values: [{value, label, colour, tip}]}`, a bar for every value; the longest is at least `span` long. */
export function bars(rows, { none, span = 0 }) {
  const longest = Math.max(...rows.flatMap((row) => row.values.map((item) => item.value)), span);
  if (!rows.length || longest <= 0) return empty(none);
  return withRows(h("dl", { class: "bars" }, rows.map((row) => [
    h("dt", {}, row.name),
    row.values.map((item) => h("dd", { title: item.tip },
      h("span", { class: "bar-track" }, h("i", { style: { width: `${(100 * item.value) / longest}%`, background: item.colour } })), item.label)),
  ])), () => rows.flatMap((row) => row.values.map((item) => ({ name: row.name, value: item.value, about: item.tip ?? item.label }))));
}
