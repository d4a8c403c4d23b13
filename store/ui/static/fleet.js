// Who works now, by their heartbeats; who has worked, and which node served which version from when on, by the store.

import { ask } from "./api.js";
import { lineChart, timeAxis } from "./charts.js";
import { empty, h, table } from "./dom.js";
import { ago, clock, count, seconds } from "./format.js";
import { follow } from "./live.js";
import { fill, panel } from "./panel.js";
import { storeState } from "./store_state.js";

const RANK = ["learner", "inference", "runner", "grader", "store"];
const COLOURS = ["var(--one)", "var(--two)", "var(--three)", "var(--four)"];

/** Two panels side by side; `seen` and `served` ask the store again, `seen` only where the past is shown. */
export function fleetPanel(run, signal) {
  const alive = panel("Fleet", { name: "fleet", about: "Processes alive on the bus, and their state. Once the run has ended: those that worked for it, and the end of their last work.", height: 150 });
  const nodes = panel("Versions served", { name: "served", about: "Weight version of each inference node over time; a step up is a swap.", height: 150 });
  alive.root.classList.add("half");
  nodes.root.classList.add("half");
  let past = null, now = null; // `past`: null until it is asked for, since the store counts all model calls for it
  const draw = async () => {
    if (isPast(now)) past ??= await Promise.all(["last_seen", "alerts"].map((question) => ask(`run/${question}`, { run_id: run }, signal)));
    return members(now, ...(past ?? [[], []]));
  };
  follow(() => fill(alive, async () => { now = await ask("fleet", { run_id: run }, signal); return draw(); }, signal), signal);
  return {
    root: h("div", { class: "grid" }, alive.root, nodes.root),
    async seen() {
      past = null;
      if (now && isPast(now)) await fill(alive, draw, signal);
    },
    served: () => fill(nodes, async () => served(await ask("run/served", { run_id: run }, signal)), signal),
  };
}

const WORK = { learner: (row) => `step ${count(row.work)}`, inference: (row) => `${count(row.work)} calls`, runner: (row) => `${count(row.work)} attempts`, grader: (row) => `${count(row.work)} grades` };

/** Whether those are shown that have worked for the run, not the living. */
const isPast = ({ problem }) => storeState() === "finished" || Boolean(problem);

/** The living and their alerts; of a run that has ended, or whose bus is silent, those that have worked for it, and what was alerted. */
function members({ members: all, problem }, past, pastAlerts) {
  const isOver = storeState() === "finished";
  const rows = isPast({ problem }) ? [...past] : sorted(all);
  const sentences = isPast({ problem }) ? pastAlerts.map(describeAlert) : all.filter((member) => member.status.alert).map((member) => String(member.status.alert));
  const alerts = sentences.map((sentence) => h("p", { class: "problem" }, sentence));
  if (!isOver && problem) alerts.push(empty(`No heartbeat is received: ${problem}. Name the bus with`, "lightningbus ui --bus nats://…"));
  if (isOver && !rows.length && !alerts.length) return empty("Nothing of this run was stored, so nobody knows which processes it had.");
  if (!problem && !rows.length) return empty("No process is alive on this bus. Start a whole run with", "lightningbus up -c run.yaml");
  return h("div", {}, alerts, rows.length ? fleetTable(rows) : null);
}

const describeAlert = ({ reason, is_over, raised_ms }) => `${clock(raised_ms)}: ${reason}${is_over ? " (over)" : ""}`;

const sorted = (all) => [...all].sort((a, b) => RANK.indexOf(a.role) - RANK.indexOf(b.role) || a.id.localeCompare(b.id));

function fleetTable(rows) {
  const several = new Set(rows.map((row) => row.model).filter(Boolean)).size > 1;
  const isPast = rows[0].last_ms !== undefined;
  return table([
    { title: "role", cell: (row) => row.role },
    { title: "name", cell: (row) => row.id || row.role },
    several && { title: "model", cell: (row) => row.model || "–" },
    !isPast && { title: "state", cell: (row) => h("span", { class: `state ${row.state}` }, row.state) },
    { title: "version", number: true, cell: (row) => row.version ?? "–" },
    { title: isPast ? "did" : "doing", class: "doing", cell: (row) => (isPast ? WORK[row.role](row) : row.doing) },
    isPast && { title: "last seen", number: true, cell: (row) => h("span", { title: clock(row.last_ms) }, ago(row.last_ms)) },
  ].filter(Boolean), rows);
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
