// Two rollouts of one task side by side, message by message; what differs is marked.

import { ask } from "./api.js";
import { h } from "./dom.js";
import { count, reward, seconds, versions } from "./format.js";
import { showLive } from "./live.js";
import { fill, panel } from "./panel.js";
import { change, linkTo } from "./place.js";

/** The page of two rollouts, `a` and `b` of the address. */
export function diffPage(root, { run, query }, signal) {
  const box = panel("Messages", { name: "diff", about: "Messages that both have stand in one row; marked words are on one side only.", height: 260 });
  root.append(h("section", { class: "head" }, h("h1", {}, "Two rollouts compared")), box.root);

  async function load(a, b) {
    await fill(box, async () => {
      const [diff, group] = await Promise.all([
        ask("rollout/diff", { run_id: run, a, b }, signal), ask("rollout/group", { run_id: run, rollout_id: a }, signal),
      ]);
      const ids = group.rollouts.map((row) => row.rollout_id);
      return h("div", {}, h("div", { class: "pickers" }, ["a", "b"].map((name) => picker(name, diff[name], ids))), rowsOf(diff.rows));
    }, signal).then(() => showLive(null), showLive);
  }

  function picker(name, side, ids) {
    const choices = [...new Set([side.rollout_id, ...ids])].sort();
    const pick = (event) => show(change({ [name]: event.target.value }, true));
    const facts = [side.outcome, `reward ${reward(side.reward)}`, `version ${versions(side.min_weight_version, side.max_weight_version)}`,
      `${count(side.response_tokens)} tokens`, seconds((side.ended_ms - side.started_ms) / 1000)];
    return h("div", {},
      h("label", {}, name === "a" ? "left" : "right", h("select", { name, change: pick }, choices.map((id) => h("option", { value: id, selected: id === side.rollout_id }, id)))),
      h("p", {}, h("a", { href: linkTo(run, side.rollout_id) }, "open"), ` · ${facts.join(" · ")}`));
  }

  const show = (next) => load(next.get("a"), next.get("b"));
  show(query);
  return show;
}

function rowsOf(rows) {
  const differing = rows.filter((row) => !row.same).length;
  return h("div", { class: "diff" },
    h("p", { class: "hint" }, differing ? `${count(differing)} of ${count(rows.length)} rows differ.` : "All messages are the same."),
    h("div", { class: "sides" }, rows.flatMap((row) => [cell(row.a, row.same), cell(row.b, row.same)])));
}

function cell(side, same) {
  if (!side) return h("div", { class: "side absent" }, "no such message");
  return h("div", { class: same ? "side" : "side differs" },
    h("span", { class: `role ${side.role}` }, `${side.role} · call ${side.call}`),
    h("div", { class: "text" }, side.pieces.map(([text, differs]) => (differs && !same ? h("mark", {}, text) : text))));
}
