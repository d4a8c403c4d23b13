// The rollouts of a run: filters that are part of the address, a page of rows, and the way to each.

import { ask } from "./api.js";
import { empty, h, table } from "./dom.js";
import { ago, clock, count, reward, seconds, versions } from "./format.js";
import { fill, panel } from "./panel.js";
import { change, linkTo } from "./place.js";
import { filterForm } from "./rollout_filters.js";
import { setChip } from "./rollout_set.js";
import { namedRewardList } from "./rollout_story.js";
import { follows } from "./runs.js";
import { viewsMenu } from "./saved_views.js";

const COLUMNS = [
  { title: "rollout", class: "name", cell: (row) => h("a", { href: link(row) }, row.rollout_id) },
  { title: "mode", about: "train, or the name of the evaluation", cell: setChip },
  { title: "question and answer", class: "gist", cell: gist },
  { title: "outcome", cell: (row) => h("span", { class: `outcome ${row.outcome}`, title: row.error || null }, row.outcome) },
  { title: "reward", number: true, cell: (row) => reward(row.reward) },
  { title: "parts", class: "parts wide", about: "rewards by name", cell: (row) => namedRewardList(row.rewards) || "–" },
  { title: "seconds", number: true, cell: (row) => seconds(row.seconds) },
  { title: "calls", number: true, cell: (row) => count(row.num_calls) },
  { title: "tokens", number: true, about: "sampled tokens", cell: (row) => count(row.response_tokens) },
  { title: "version", number: true, cell: (row) => (model ? row.newest_versions[model] ?? "–" : versions(row.min_weight_version, row.max_weight_version)) },
  { title: "ended", number: true, cell: (row) => h("time", { title: clock(row.ended_ms, true) }, ago(row.ended_ms)) },
];
let run = "", model = ""; // a model that was chosen: versions are those of it

/** The first words of the question, and of the answer or the error. */
function gist(row) {
  return [h("span", { class: "asks" }, row.question || "–"), row.error ? h("span", { class: "problem-line", title: row.error }, row.error) : h("span", { class: "quiet" }, row.answer || "–")];
}

const link = (row) => linkTo(run, row.rollout_id);

/** The panel; `load` asks again, `ask` takes other filters, `outcomes` says which there are to choose from. */
export function rolloutsPanel(of, query, signal) {
  run = of;
  let params = filtersOf(query);
  const fields = filterForm((changed, typed) => go(changed, typed));
  const pager = h("nav", { class: "pager", "aria-label": "Pages of rollouts" });
  const box = panel("Rollouts", { name: "rollouts", height: 420, extra: h("div", { class: "list-tools" }, viewsMenu(open), pager) });
  box.root.insertBefore(fields.root, box.root.children[1]);

  function go(changed, typed = false) {
    const first = Object.keys(changed).every((name) => !params.get(name));
    take(change({ page: "", ...changed }, !typed || first)); // not a step back for every letter
  }

  /** Opens a saved view: its filters in place of those that are chosen. */
  function open(query) {
    const next = new URLSearchParams(query), kept = Object.fromEntries([...params.keys()].map((name) => [name, ""]));
    take(change({ ...kept, ...Object.fromEntries(next) }, true));
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
