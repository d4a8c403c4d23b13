// Every run there is, the one that moved last first.

import { ask } from "./api.js";
import { empty, h, table } from "./dom.js";
import { ago, clock, count, reward, seconds } from "./format.js";
import { follow, showLive } from "./live.js";
import { fill, panel } from "./panel.js";
import { linkTo } from "./place.js";

const COLUMNS = [
  { title: "run", class: "name", cell: (row) => h("a", { href: link(row) }, row.run_id) },
  { title: "mode", cell: (row) => h("span", { class: `chip ${row.mode}` }, row.mode) },
  { title: "rollouts", number: true, cell: (row) => count(row.rollouts) },
  { title: "mean reward lately", number: true, about: "of the last 200 that ended well", cell: (row) => lately(row.mean_reward) },
  { title: "newest version", number: true, cell: (row) => row.version ?? "–" },
  { title: "began", class: "wide", cell: (row) => clock(row.first_ms) },
  { title: "lasted", number: true, class: "wide", cell: (row) => seconds((row.last_ms - row.first_ms) / 1000) },
  { title: "last rollout", number: true, cell: (row) => h("time", { title: clock(row.last_ms) }, ago(row.last_ms)) },
];

/** The first page. */
export function runsPage(root, _, signal) {
  const box = panel("Runs", { name: "runs", height: 240 });
  root.append(box.root);
  follow(() => fill(box, async () => listed(await ask("runs", {}, signal)), signal), signal, showLive);
}

function listed(rows) {
  if (!rows.length) return empty("No rollout has ended yet. Put tasks in and start a runner:", "lightningbus publish tasks.jsonl --run first");
  return table(COLUMNS, rows, (row) => ({ class: "link", click: (event) => follows(event, link(row)) }));
}

const link = (row) => linkTo(row.run_id, "", row.mode === "train" ? {} : { mode: row.mode });

/** A click anywhere in a row is one on its link, unless text is being marked. */
export function follows(event, href) {
  if (!event.target.closest("a") && !String(getSelection())) location.hash = href;
}

function lately(value) {
  if (value === null) return "–";
  return h("span", { class: "meter" }, h("span", {}, h("i", { style: { width: `${100 * Math.max(0, Math.min(1, value))}%` } })), reward(value));
}
