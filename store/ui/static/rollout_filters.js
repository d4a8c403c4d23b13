// What leaves rollouts out of the list, and their order: a form whose fields are parameters of the address.

import { h } from "./dom.js";

const SORTS = {
  newest: "newest first", oldest: "oldest first", slowest: "slowest first", longest: "most tokens first",
  best: "best reward first", worst: "worst reward first",
};
const TYPED_MS = 300;

const CHOICES = { evaluation: "evaluations", role: "roles", tool: "tools", label: "labels", part: "parts" };
const LEAST = { role: 2, evaluation: 1, tool: 1, label: 1, part: 1 }; // choices that are worth a field

/** The form; `changed(values, typed)` is called with the parameters that a reader changes. */
export function filterForm(changed) {
  const field = (name, label, input) => h("label", { class: `field by-${name}` }, h("span", {}, label), input);
  const select = (name, options) => h("select", { name, change: (event) => changed({ [name]: event.target.value }) }, options);
  let timer = 0;
  const text = (name, attributes = {}) => h("input", {
    name, type: "search", autocomplete: "off", spellcheck: "false", ...attributes,
    input: (event) => {
      clearTimeout(timer);
      timer = setTimeout(() => changed({ [name]: event.target.value.trim() }, true), TYPED_MS);
    },
  });
  const range = (name, step) => ["from", "to"].map((end) => text(`${name}_${end}`, { type: "number", step, placeholder: end, "aria-label": `${name} ${end}` }));
  const outcome = select("outcome", [h("option", { value: "" }, "any")]);
  const choices = Object.fromEntries(Object.keys(CHOICES).map((name) => [name, field(name, name === "part" ? "part of the reward" : name, select(name, [h("option", { value: "" }, "any")]))]));
  for (const item of Object.values(choices)) item.hidden = true; // until there is something to choose
  const root = h("form", { class: "filters", submit: (event) => event.preventDefault() },
    field("name", "task or rollout", text("name", { placeholder: "part of its name" })),
    field("words", "words in a call", text("words", { placeholder: "all of these" })),
    field("mode", "mode", select("mode", [h("option", { value: "" }, "any"), ...["train", "eval"].map((value) => h("option", { value }, value))])),
    choices.evaluation,
    field("outcome", "outcome", outcome),
    choices.role, choices.tool, choices.label,
    field("step", "trained in step", text("step", { type: "number", min: 0, step: 1, placeholder: "any" })),
    choices.part,
    h("fieldset", { class: "field range" }, h("legend", {}, "reward from, to"), range("reward", "any")),
    h("fieldset", { class: "field range" }, h("legend", {}, "tokens"), range("tokens", "1")),
    h("fieldset", { class: "field range" }, h("legend", {}, "version"), range("version", "1")),
    field("sort", "order", select("sort", Object.entries(SORTS).map(([value, name]) => h("option", { value: value === "newest" ? "" : value }, name)))));
  return {
    root,
    set(query) {
      for (const input of root.elements) {
        const value = query.get(input.name) ?? "";
        if (value && input.tagName === "SELECT") offer(input, [value]);
        if (value && input.name in choices) choices[input.name].hidden = false;
        if (input.name && input !== document.activeElement && input.value !== value) input.value = value;
      }
    },
    outcomes(data) {
      offer(outcome, data);
    },
    choices(data) {
      for (const [name, plural] of Object.entries(CHOICES)) {
        offer(choices[name].querySelector("select"), (data[plural] ?? []).toSorted());
        choices[name].hidden = (data[plural] ?? []).length < LEAST[name] && !choices[name].querySelector("select").value;
      }
    },
  };
}

/** Adds the options that a select does not have yet. */
function offer(select, values) {
  const known = new Set([...select.options].map((option) => option.value));
  for (const value of values) if (!known.has(value)) select.append(h("option", { value }, value));
}
