// Who works now, by their heartbeats, and which node served which version from when on, by the store.

import { ask } from "./api.js";
import { lineChart, timeAxis } from "./charts.js";
import { empty, h, table } from "./dom.js";
import { ago, clock, count, seconds } from "./format.js";
import { follow } from "./live.js";
import { fill, panel } from "./panel.js";

const RANK = ["learner", "inference", "runner", "store"];
const COLOURS = ["var(--one)", "var(--two)", "var(--three)", "var(--four)"];

/** Two panels side by side; `served` asks the store again. */
export function fleetPanel(run, signal) {
  const alive = panel("Fleet", { name: "fleet", about: "Processes alive on the bus, and their state.", height: 150 });
  const nodes = panel("Versions served", { name: "served", about: "Weight version of each inference node over time; a step up is a swap.", height: 150 });
  alive.root.classList.add("half");
  nodes.root.classList.add("half");
  follow(() => fill(alive, async () => members(await ask("fleet", { run_id: run }, signal)), signal), signal);
  return {
    root: h("div", { class: "grid" }, alive.root, nodes.root),
    served: () => fill(nodes, async () => served(await ask("run/served", { run_id: run }, signal)), signal),
  };
}

function members({ members: all, problem }) {
  if (problem) return empty(`No heartbeat is received: ${problem}. Name the bus with`, "lightningbus ui --bus nats://…");
  if (!all.length) return empty("No process is alive on this bus. Start a whole run with", "lightningbus up -c run.yaml");
  const sorted = [...all].sort((a, b) => RANK.indexOf(a.role) - RANK.indexOf(b.role) || a.id.localeCompare(b.id));
  const several = new Set(all.map((member) => member.model).filter(Boolean)).size > 1;
  const alerts = sorted.filter((member) => member.status.alert).map((member) => h("p", { class: "problem" }, String(member.status.alert)));
  return h("div", {}, alerts, table([
    { title: "role", cell: (member) => member.role },
    { title: "name", cell: (member) => member.id },
    several && { title: "model", cell: (member) => member.model || "–" },
    { title: "state", cell: (member) => h("span", { class: `state ${member.state}` }, member.state) },
    { title: "version", number: true, cell: (member) => member.version ?? "–" },
    { title: "doing", class: "doing", cell: (member) => member.doing },
  ].filter(Boolean), sorted));
}

function served(rows) {
  const several = new Set(rows.map((row) => row.model)).size > 1;
  const nameOf = (row) => (several ? `${row.node} · ${row.model}` : row.node);
  const nodes = [...new Set(rows.map(nameOf))].sort();
  const last = (node) => rows.find((row) => nameOf(row) === node);
  const chart = lineChart({
    series: nodes.map((node, place) => ({
      name: node,
      steps: true,
      colour: COLOURS[place % COLOURS.length],
      points: rows.filter((row) => nameOf(row) === node).reverse().map((row) => ({
        x: row.activated_ms, y: row.version, title: clock(row.activated_ms), label: `version ${row.version}, pause ${seconds(row.pause_seconds)}`,
      })),
    })),
    x: timeAxis(rows.map((row) => row.activated_ms)), y: { label: "version", format: count }, height: 150,
  });
  if (!chart) return empty("No node has served a version of this run yet. Start one with", "lightningbus inference --model-path DIR");
  return h("div", {}, chart, table([
    { title: several ? "node · model" : "node", cell: (node) => node },
    { title: "serves", number: true, cell: (node) => last(node).version },
    { title: "since", number: true, cell: (node) => ago(last(node).activated_ms) },
    { title: "swaps", number: true, cell: (node) => count(last(node).swaps) },
    { title: "mean fetch", number: true, cell: (node) => seconds(last(node).mean_fetch_seconds) },
    { title: "mean pause", number: true, cell: (node) => seconds(last(node).mean_pause_seconds) },
  ], nodes));
}
