// One run: how it learns, how far off-policy, where time goes, who works on it, and its rollouts.

import { ask } from "./api.js";
import { bars, legend, lineChart, timeAxis } from "./charts.js";
import { empty, h } from "./dom.js";
import { fleetPanel } from "./fleet.js";
import { ago, clock, count, figure, reward, seconds, share } from "./format.js";
import { follow, showLive } from "./live.js";
import { fill, panel } from "./panel.js";
import { rolloutsPanel } from "./rollouts.js";

const COLOURS = { train: "var(--one)", eval: "var(--two)" };
const SMALL = 190;
const WAITING = "Nothing yet: figures come with the first";

/** The page of a run; what it returns is called when the part of the address behind ? changes. */
export function runPage(root, { run, query }, signal) {
  const head = h("section", { class: "head" }, h("h1", {}, run), h("div", { class: "facts", id: "facts" }));
  const boxes = figures();
  const rollouts = rolloutsPanel(run, query, signal);
  const fleet = fleetPanel(run, signal);
  root.append(head, h("div", { class: "grid" }, ...boxes.map((item) => item.box.root)), fleet.root, rollouts.root);

  const seen = new Map();
  const look = async () => {
    const pulse = JSON.stringify(await ask("run/pulse", { run_id: run }, signal));
    const stale = [
      ["facts", async () => head.lastChild.replaceChildren(
        ...facts(await ask("run/summary", { run_id: run }, signal), rollouts),
        ...auditFact(await ask("run/audit", { run_id: run }, signal)))],
      ["rollouts", () => rollouts.load()],
      ["served", () => fleet.served()],
      ...boxes.map((item) => [item.question, () => fill(item.box, async () => item.draw(await ask(`run/${item.question}`, { run_id: run }, signal)), signal)]),
    ].filter(([name]) => seen.get(name) !== pulse);
    const done = await Promise.allSettled(stale.map(async ([name, load]) => { await load(); seen.set(name, pulse); }));
    const failed = done.find((item) => item.status === "rejected");
    if (failed) throw failed.reason;
  };
  follow(look, signal, showLive);
  return rollouts.ask;
}

function figures() {
  const chartBox = (question, draw, title, about, height, width = "half") => {
    const box = panel(title, { about, height, short: width === "half" });
    box.root.id = `chart-${question}${width === "two-thirds" ? "" : `-${title.split(" ")[0].toLowerCase()}`}`;
    box.root.classList.add(width);
    return { question, box, draw };
  };
  const rewards = chartBox("rewards", rewardChart, "Reward by weight version", "Mean of the rollouts that ended well; the band is one standard deviation.", 250, "two-thirds");
  const time = chartBox("time", timeBars, "Where the time of a rollout goes", "Mean seconds of its parts.", 250, "third");
  const steps = [
    chartBox("steps", staleness, "Staleness and sample size", "How many versions behind tokens were, and the share of them that counts.", SMALL),
    chartBox("steps", drift, "Drift between engine and learner", "k3 of the log-probabilities of both, and KL of the update.", SMALL),
  ];
  const pace = chartBox("throughput", throughput, "Throughput", "By the minute in which an attempt ended.", SMALL);
  const trained = chartBox("trained", trainedBars, "Trained by duration", "Share of the rollouts that ended which is trained, from the quickest tenth to the slowest.", SMALL);
  return [rewards, time, ...steps, pace, trained];
}

function facts(modes, rollouts) {
  rollouts.outcomes([...new Set(modes.flatMap((item) => item.outcomes))].sort());
  if (!modes.length) return [empty("No rollout of this run has ended yet; this page shows the first as it does.")];
  return modes.map((item) => h("dl", { class: "fact" },
    h("dt", {}, h("span", { class: `chip ${item.mode}` }, item.mode)),
    h("dd", {}, `${count(item.rollouts)} rollouts`),
    h("dd", {}, `${share(item.ended_well / item.rollouts)} ended well`),
    h("dd", {}, `${count(item.retried)} tried again`),
    h("dd", {}, item.version === null ? "no version" : `version ${item.version}`),
    h("dd", { title: `${clock(item.first_ms)} to ${clock(item.last_ms)}` }, `${seconds((item.last_ms - item.first_ms) / 1000)} long, last ${ago(item.last_ms)}`)));
}

function auditFact([audit]) {
  if (!audit?.tokens) return [];
  return [h("dl", { class: "fact", id: "audit" },
    h("dt", {}, h("span", { class: "chip" }, "audit")),
    h("dd", {}, `${count(audit.tokens)} tokens recomputed`),
    h("dd", { class: audit.differing ? "problem" : "" }, `${count(audit.differing)} differ`),
    h("dd", { class: audit.quarantined ? "problem" : "" }, `${count(audit.quarantined)} rollouts quarantined`),
    audit.trained_before ? h("dd", { class: "problem" }, `${count(audit.trained_before)} trained before that`) : null)];
}

function rewardChart(rows) {
  const modes = [...new Set(rows.map((row) => row.mode))];
  const series = modes.map((mode) => ({
    name: mode,
    colour: COLOURS[mode] ?? "var(--three)",
    points: rows.filter((row) => row.mode === mode).map((row) => ({
      x: row.version,
      y: row.mean_reward,
      low: Math.max(row.worst, row.mean_reward - row.reward_spread),
      high: Math.min(row.best, row.mean_reward + row.reward_spread),
      title: span(row.version, row.per_point),
      label: `${reward(row.mean_reward)} ± ${figure(row.reward_spread)} of ${count(row.rollouts)}`,
    })),
  }));
  return lineChart({ series, x: { label: "weight version", whole: true, format: count }, y: { label: "reward" }, height: 226 })
    ?? empty(`${WAITING} rollouts that end well.`);
}

const span = (first, width) => (width > 1 ? `${first}–${first + width - 1}` : String(first));
const over = (rows, name) => rows.map((row) => ({ x: row.step, y: row[name], title: span(row.step, row.per_point) }));
const STEP = { label: "training step", whole: true, format: count };

function staleness(rows) {
  return lineChart({
    series: [
      { name: "max staleness", colour: "var(--two)", points: over(rows, "max_staleness") },
      { name: "mean staleness", colour: "var(--one)", points: over(rows, "mean_staleness") },
      { name: "effective sample size", colour: "var(--three)", points: over(rows, "ess") },
    ],
    x: STEP, y: { label: "versions, share", min: 0 }, height: SMALL - 26,
  }) ?? empty(`${WAITING} training step.`);
}

function drift(rows) {
  return lineChart({
    series: [
      { name: "k3 KL to engine", colour: "var(--one)", points: over(rows, "k3_kl") },
      { name: "KL of update", colour: "var(--two)", points: over(rows, "ppo_kl") },
    ],
    x: STEP, y: { label: "nats", min: 0 }, height: SMALL - 26,
  }) ?? empty(`${WAITING} training step.`);
}

function throughput(all) {
  const rows = all.length > 2 ? all.slice(0, -1) : all; // the last minute is not over
  const by = (name) => rows.map((row) => ({ x: row.minute_ms, y: row[name], label: `${figure(row[name])} /s` }));
  return lineChart({
    series: [{ name: "rollouts", colour: "var(--one)", points: by("rollouts_per_s") }, { name: "model calls", colour: "var(--two)", points: by("calls_per_s") }],
    x: timeAxis(rows.map((row) => row.minute_ms)), y: { label: "per second", min: 0 }, height: SMALL - 26,
  }) ?? empty(`${WAITING} rollouts.`);
}

function trainedBars(rows) {
  const bar = (row) => ({
    value: row.trained / row.ended,
    label: share(row.trained / row.ended),
    colour: COLOURS.train,
    tip: `${seconds(row.min_seconds)} to ${seconds(row.max_seconds)}: ${count(row.trained)} of ${count(row.ended)} trained`,
  });
  return bars(rows.map((row) => ({ name: `up to ${seconds(row.max_seconds)}`, values: [bar(row)] })), `${WAITING} training step.`);
}

const PARTS = { queue: "in the queue", model: "model calls", tool: "tools", agent: "the agent itself", publish: "being published" };

function timeBars(rows) {
  const modes = [...new Set(rows.map((row) => row.mode))].sort().reverse();
  const colour = (mode) => COLOURS[mode] ?? "var(--three)";
  const parts = Object.entries(PARTS).map(([part, name]) => ({
    name,
    values: rows.filter((row) => row.part === part).sort((a, b) => modes.indexOf(a.mode) - modes.indexOf(b.mode)).map((row) => ({
      value: row.mean_seconds,
      label: seconds(row.mean_seconds),
      colour: colour(row.mode),
      tip: `${row.mode}: mean ${seconds(row.mean_seconds)}, 95th percentile ${seconds(row.p95_seconds)}, ${count(row.rollouts)} rollouts`,
    })),
  })).filter((item) => item.values.length);
  return h("div", {}, modes.length ? legend(modes.map((mode) => ({ name: mode, colour: colour(mode) }))) : null, bars(parts, `${WAITING} rollouts.`));
}
