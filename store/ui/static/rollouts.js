// The rollouts of a run: filters that are part of the address, a page of rows, and the way to each.

import { ask } from "./api.js";
import { empty, h, table } from "./dom.js";
import { ago, clock, count, reward, seconds, versions } from "./format.js";
import { fill, panel } from "./panel.js";
import { change, linkTo } from "./place.js";
import { setChip } from "./rollout_set.js";
import { follows } from "./runs.js";

const SORTS = {
  newest: "newest first", oldest: "oldest first", slowest: "slowest first", longest: "most tokens first",
  best: "best reward first", worst: "worst reward first",
};
const TYPED_MS = 300;

const CHOICES = { evaluation: "evaluations", role: "roles", tool: "tools" };

const COLUMNS = [
  { title: "rollout", class: "name", cell: (row) => h("a", { href: link(row) }, row.rollout_id) },
  { title: "mode", about: "train, or the name of the evaluation", cell: setChip },
  { title: "outcome", cell: (row) => h("span", { class: `outcome ${row.outcome}`, title: row.error || null }, row.outcome) },
  { title: "reward", number: true, cell: (row) => reward(row.reward) },
  { title: "seconds", number: true, cell: (row) => seconds(row.seconds) },
  { title: "in queue", number: true, class: "wide", cell: (row) => seconds(row.queue_seconds) },
  { title: "calls", number: true, cell: (row) => count(row.num_calls) },
  { title: "tokens", number: true, about: "sampled tokens", cell: (row) => count(row.response_tokens) },
  { title: "version", number: true, cell: (row) => (model ? row.newest_versions[model] ?? "–" : versions(row.min_weight_version, row.max_weight_version)) },
  { title: "attempt", number: true, class: "wide", cell: (row) => row.attempt },
  { title: "runner", class: "wide", cell: (row) => row.runner },
  { title: "ended", number: true, cell: (row) => h("time", { title: clock(row.ended_ms, true) }, ago(row.ended_ms)) },
];
let run = "", model = ""; // a model that was chosen: versions are those of it

const link = (row) => linkTo(run, row.rollout_id);

/** The panel; `load` asks again, `ask` takes other filters, `outcomes` says which there are to choose from. */
export function rolloutsPanel(of, query, signal) {
  run = of;
  let params = filtersOf(query);
  const fields = form((changed, typed) => go(changed, typed));
  const pager = h("nav", { class: "pager", "aria-label": "Pages of rollouts" });
  const box = panel("Rollouts", { name: "rollouts", height: 420, extra: pager });
  box.root.insertBefore(fields.root, box.root.children[1]);

  function go(changed, typed = false) {
    const first = Object.keys(changed).every((name) => !params.get(name));
    take(change({ page: "", ...changed }, !typed || first)); // not a step back for every letter
  }

  let turn = 0;
  async function load() {
    model = params.get("model") ?? "";
    const mine = (turn += 1);
    const data = await fill(box, async () => {
      const answer = await ask("run/rollouts", { run_id: of, ...Object.fromEntries(params) }, signal);
      if (mine !== turn) throw new DOMException("a later question was asked", "AbortError");
      pager.replaceChildren(...pages(answer, Number(params.get("page") || 1), (page) => go({ page: page > 1 ? String(page) : "" })));
      return listed(answer, params, () => go(Object.fromEntries(narrowing(params).map((name) => [name, ""]))));
    }, { get aborted() { return signal.aborted || mine !== turn; } }).catch((error) => { if (mine === turn) throw error; });
    return data;
  }

  function take(next) {
    const filters = filtersOf(next);
    if (String(filters) === String(params)) return;
    params = filters;
    fields.set(params);
    load().catch(() => {}); // it stands in the panel
  }

  fields.set(params);
  ask("run/choices", { run_id: of }, signal).then(([data]) => fields.choices(data), () => {}); // without them the fields stay hidden
  return { root: box.root, load, ask: take, outcomes: fields.outcomes };
}

/** The query without what other parts of the page keep in it. */
function filtersOf(query) {
  return new URLSearchParams([...query].filter(([name]) => name !== "metrics" && name !== "smooth" && name !== "axis"));
}

/** Names of what leaves rollouts out. */
const narrowing = (params) => [...params.keys()].filter((name) => name !== "model");

function form(changed) {
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
  const choices = Object.fromEntries(Object.keys(CHOICES).map((name) => [name, field(name, name, select(name, [h("option", { value: "" }, "any")]))]));
  for (const item of Object.values(choices)) item.hidden = true; // until there is something to choose
  const root = h("form", { class: "filters", submit: (event) => event.preventDefault() },
    field("name", "task or rollout", text("name", { placeholder: "part of its name" })),
    field("words", "words in a call", text("words", { placeholder: "all of these" })),
    field("mode", "mode", select("mode", [h("option", { value: "" }, "any"), ...["train", "eval"].map((value) => h("option", { value }, value))])),
    choices.evaluation,
    field("outcome", "outcome", outcome),
    choices.role, choices.tool,
    field("step", "trained in step", text("step", { type: "number", min: 0, step: 1, placeholder: "any" })),
    h("fieldset", { class: "field range" }, h("legend", {}, "reward"), range("reward", "any")),
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
        offer(choices[name].querySelector("select"), data[plural].toSorted());
        choices[name].hidden = data[plural].length < (name === "role" ? 2 : 1) && !choices[name].querySelector("select").value;
      }
    },
  };
}

/** Adds the options that a select does not have yet. */
function offer(select, values) {
  const known = new Set([...select.options].map((option) => option.value));
  for (const value of values) if (!known.has(value)) select.append(h("option", { value }, value));
}

function listed({ rollouts }, params, clear) {
  if (rollouts.length) return table(COLUMNS, rollouts, (row) => ({ class: "link", click: (event) => follows(event, link(row)) }));
  if (!narrowing(params).length) return empty("No rollout has ended yet. Start a runner with", "lightningbus runner --entrypoint module:function");
  return h("div", { class: "empty" }, "No rollout fits these filters. ", h("button", { type: "button", click: clear }, "Show all"));
}

function pages({ count: all, page_size: size, rollouts }, page, go) {
  const first = (page - 1) * size;
  const button = (name, to, off) => h("button", { type: "button", disabled: off, click: () => go(to) }, name);
  return [
    h("span", {}, rollouts.length ? `${count(first + 1)}–${count(first + rollouts.length)} of ${count(all)}` : "none"),
    button("Previous", page - 1, page <= 1), button("Next", page + 1, first + rollouts.length >= all),
  ];
}
