// The list of metrics to choose from: in words, by group, with a search box; their stored names on demand.

import { h } from "./dom.js";

/** The picker; `changed(names)` is called with at most `most` chosen names. Metrics are `{name, title, about, group}`. */
export function metricPicker(changed, most) {
  let metrics = [], chosen = [];
  const search = h("input", { type: "search", placeholder: "part of its name", "aria-label": "Search metrics", autocomplete: "off", input: () => list() });
  const raw = h("input", { type: "checkbox", name: "raw", change: () => list() });
  const options = h("div", { class: "options", tabindex: "0" });
  const summary = h("summary", {}, "Metrics");
  const root = h("details", { class: "picker" }, summary, h("div", { class: "choices" }, search, h("label", { class: "raw-names" }, raw, "stored names"), options));
  const choose = (name, isChosen) => {
    chosen = isChosen ? [...chosen, name].slice(-most) : chosen.filter((other) => other !== name);
    changed(chosen);
  };
  const option = ({ name, title, about }) => {
    const input = h("input", { type: "checkbox", value: name, change: () => choose(name, input.checked) });
    input.checked = chosen.includes(name);
    return h("li", {}, h("label", { title: about || null }, input, raw.checked ? name : title));
  };
  const list = () => {
    const words = search.value.trim().toLowerCase();
    const matching = metrics.filter(({ name, title, about }) => `${name} ${title} ${about}`.toLowerCase().includes(words));
    const groups = [...new Set(matching.map((metric) => metric.group))];
    options.replaceChildren(...groups.flatMap((group) => [h("h3", {}, group), h("ul", {}, matching.filter((metric) => metric.group === group).map(option))]));
  };
  return {
    root,
    set(known, selected) {
      const isSame = JSON.stringify([known, selected]) === JSON.stringify([metrics, chosen]);
      [metrics, chosen] = [known, selected];
      summary.textContent = `Metrics (${chosen.length} of ${metrics.length})`;
      if (!isSame || !options.children.length) list();
    },
  };
}
