// The group of a rollout: the rollouts of the same task, and the ones that ended before and after.

import { ask } from "./api.js";
import { h, table } from "./dom.js";
import { count, figure, reward, seconds, versions } from "./format.js";
import { fill, panel } from "./panel.js";
import { linkTo, linkToDiff } from "./place.js";

/** The panel and the links to the neighbours; `load` asks for both. */
export function groupPanel(run, rollout, signal) {
  const box = panel("Group", { name: "group", about: "The rollouts of the same task." });
  const steps = h("nav", { class: "steps", "aria-label": "Rollouts before and after" });
  const load = () => fill(box, async () => {
    const group = await ask("rollout/group", { run_id: run, rollout_id: rollout }, signal);
    steps.replaceChildren(...neighbours(run, group));
    return listed(run, rollout, group.rollouts);
  }, signal);
  return { root: box.root, steps, load, show: box.show };
}

function neighbours(run, { previous, next, next_failing: failing, next_changed: changed, first_version: first, last_version: last }) {
  const step = (name, id, rel) => (id ? h("a", { href: linkTo(run, id), rel, title: id }, name) : h("span", {}, name));
  const other = (name, href, title) => h("a", { href, title }, name);
  return [
    step("← Previous", previous, "prev"), step("Next →", next, "next"),
    failing ? other("Next failing", linkTo(run, failing), "the next that failed or earned nothing") : null,
    changed ? other("Next changed", linkTo(run, changed), "the next whose reward differs from that of the same task before") : null,
    first && last && first !== last ? other("First version and now", linkToDiff(run, first, last), "this task at its first and its last version, side by side") : null,
  ].filter(Boolean);
}

function listed(run, rollout, rollouts) {
  const models = [...new Set(rollouts.flatMap((row) => Object.keys(row.advantages)))].sort();
  const advantages = models.length > 1 ? models.map((model) => ({ title: `advantage, ${model}`, number: true, cell: (row) => figure(row.advantages[model] ?? null) }))
    : [{ title: "advantage", number: true, cell: (row) => figure(row.advantages[models[0]] ?? null) }];
  const best = Math.max(...rollouts.map((row) => row.reward ?? -Infinity));
  return table([
    { title: "rollout", class: "name", cell: (row) => (row.rollout_id === rollout ? row.rollout_id : h("a", { href: linkTo(run, row.rollout_id) }, row.rollout_id)) },
    { title: "reward", number: true, cell: (row) => (row.reward === best && rollouts.length > 1 ? h("b", {}, reward(row.reward)) : reward(row.reward)) },
    ...advantages,
    { title: "outcome", cell: (row) => h("span", { class: `outcome ${row.outcome}` }, row.outcome) },
    { title: "version", number: true, cell: (row) => versions(row.min_weight_version, row.max_weight_version) },
    { title: "tokens", number: true, about: "sampled tokens", cell: (row) => count(row.response_tokens) },
    { title: "took", number: true, cell: (row) => seconds(row.seconds) },
    { title: "messages", cell: (row) => (row.rollout_id === rollout ? "this rollout" : h("a", { href: linkToDiff(run, rollout, row.rollout_id) }, "compare")) },
  ], rollouts, (row) => ({ class: row.rollout_id === rollout ? "here" : null }));
}
