// One run: how it learns, how far off-policy, where time goes, who works on it, and its rollouts.

import { ask } from "./api.js";
import { empty, h } from "./dom.js";
import { fleetPanel } from "./fleet.js";
import { ago, clock, count, seconds, share } from "./format.js";
import { follow, showLive } from "./live.js";
import { metricCharts } from "./metrics.js";
import { namedRewards } from "./named_rewards.js";
import { overviewTiles } from "./overview.js";
import { fill, panel } from "./panel.js";
import { change, place } from "./place.js";
import { rolloutsPanel } from "./rollouts.js";
import { rolloutSets, setChip } from "./rollout_set.js";
import * as charts from "./run_charts.js";
import { filesPanel } from "./run_files.js";
import { AXES, placesOn } from "./x_axis.js";

const SMALL = 190;

/** The page of a run; what it returns is called when the part of the address behind ? changes. */
export function runPage(root, { run, query }, signal) {
  const models = modelChoice(query, () => {
    rollouts.ask(place().query);
    look().catch(() => {}); // it stands in the panels
  });
  const axis = axisChoice(query, () => { look().catch(() => {}); });
  const overview = h("div", { id: "overview", "aria-busy": "true" }, h("div", { class: "skeleton" }, "loading …"));
  const head = h("section", { class: "head" }, h("div", { class: "headline" }, h("h1", {}, run), h("span", { class: "run-state", id: "state" }), h("div", { class: "head-tools" }, models.root, axis.root)),
    overview, h("div", { class: "facts", id: "facts" }));
  const boxes = chartBoxes();
  const rollouts = rolloutsPanel(run, query, signal);
  const fleet = fleetPanel(run, signal);
  const files = filesPanel(run, signal);
  const named = namedRewards(signal);
  const metrics = metricCharts({
    listMetrics: () => ask("run/metric_names", { run_id: run }, signal),
    loadSeries: async (names) => seriesByMetric(await ask("run/metrics", { run_id: run, model: models.chosen(), names: names.join(",") }, signal), places.step.at),
    axis: () => places.step.axis(),
    query, signal,
  });
  root.append(head, h("div", { class: "grid" }, ...boxes.map((item) => item.box.root)), named.root, metrics.root, fleet.root, rollouts.root, files.root);

  const seen = new Map();
  let lastPulse = "", places = { step: placesOn("", [], "step"), version: placesOn("", [], "version") };
  let ended = Promise.resolve();
  /** Looks once the look before has ended: what that one draws does not come over what this one draws. */
  const look = () => (ended = ended.catch(() => {}).then(lookNow));
  const lookNow = async () => {
    const now = JSON.stringify(await ask("run/change_token", { run_id: run }, signal));
    if (now !== lastPulse) models.set((await ask("run/models", { run_id: run }, signal)).map((row) => row.model));
    lastPulse = now;
    const over = axis.chosen(), token = `${models.chosen()} ${over} ${now}`;
    const answers = new Map();
    const answer = (question, parameters = {}) => {
      if (!answers.has(question)) answers.set(question, ask(`run/${question}`, { run_id: run, model: models.chosen(), ...parameters }, signal));
      return answers.get(question);
    };
    const rows = await answer("axes");
    places = { step: placesOn(over, rows, "step"), version: placesOn(over, rows, "version") };
    const stale = [
      ["overview", async () => showOverview(head, await answer("overview"), await ask("run/state", { run_id: run }, signal))],
      ...boxes.map((item) => [item.box, () => fill(item.box, async () => item.draw(await answer(item.question, item.parameters), places), signal)]),
      ["facts", async () => head.lastChild.replaceChildren(...facts(await answer("summary"), rollouts), ...auditFact(await answer("audit")))],
      ["named", () => named.load(answer("named_rewards"), places)],
      ["rollouts", () => rollouts.load()],
      ["metrics", () => metrics.load()],
      ["seen", () => fleet.seen()],
      ["served", () => fleet.served()],
      ["files", () => files.load()],
    ].filter(([name]) => seen.get(name) !== token);
    const done = await Promise.allSettled(stale.map(async ([name, load]) => { await load(); seen.set(name, token); }));
    const failed = done.find((item) => item.status === "rejected");
    if (failed) throw failed.reason;
  };
  follow(look, signal, showLive);
  return (next) => {
    models.ask(next);
    axis.ask(next);
    rollouts.ask(next);
    metrics.ask(next);
  };
}

function chartBoxes() {
  const chartBox = (id, question, draw, title, about, { height = SMALL, width = "third", parameters = {} } = {}) => {
    const box = panel(title, { about, height, name: `chart-${id}` });
    box.root.classList.add(width);
    return { question, parameters, box, draw };
  };
  const steps = { parameters: { names: charts.STEP_METRICS.join(",") } };
  return [
    chartBox("rewards", "rewards", (rows, places) => charts.rewardChart(charts.rewardSeries(rows, { place: places.version.at }), places.version.axis(), 326), "Mean reward",
      "Of the rollouts of each weight version, with the standard error of the mean. Training: a line in a band. Evaluations: marks.", { height: 250, width: "two-thirds" }),
    chartBox("time", "time", charts.timeBars, "Time of a rollout by part", "Mean seconds of each part.", { height: 250 }),
    chartBox("outcomes", "summary", charts.outcomeBars, "How rollouts ended", "Share of the rollouts of training and of each evaluation."),
    chartBox("staleness", "metrics", charts.stalenessChart, "Staleness and sample size", "Versions between sampling and training; and the share of tokens that would teach as much if no importance weight differed from 1.", steps),
    chartBox("drift", "metrics", charts.driftChart, "Drift", "How far the probabilities of engine and learner are apart (k3: mean of r − 1 − log r, r their ratio), and how far an update moved the policy.", steps),
    chartBox("throughput", "throughput", charts.throughputChart, "Throughput", "Attempts that ended in an interval, and their model calls."),
    chartBox("idle", "idle_nodes", charts.idleChart, "Idle share of nodes", "Share of the time in which a node answered no call of this run."),
    chartBox("trained", "trained", charts.trainedBars, "Trained by duration", "Share of the rollouts that ended which is trained, from the quickest tenth to the slowest: slow ones must not be left out more often."),
  ];
}

/** Which of a run's models the charts are of; shown where there are several, kept in the address. */
function modelChoice(query, changed) {
  let models = [], wanted = query.get("model") ?? "";
  const select = h("select", { name: "model", change: () => take(select.value, true) });
  const root = h("label", { class: "model-choice", hidden: true }, "model", select);
  const chosen = () => (models.includes(wanted) ? wanted : models[0] ?? "");
  function take(model, keep) {
    if (model === wanted) return;
    wanted = model;
    if (keep) change({ model: model === models[0] ? "" : model }, true);
    select.value = chosen();
    changed();
  }
  return {
    root, chosen,
    ask: (next) => take(next.get("model") ?? "", false),
    set(known) {
      if (String(known) === String(models)) return;
      models = known;
      root.hidden = models.length < 2;
      select.replaceChildren(...models.map((model) => h("option", { value: model }, model)));
      select.value = chosen();
    },
  };
}

/** What the charts over training are drawn over, kept in the address. */
function axisChoice(query, changed) {
  const first = Object.keys(AXES)[0];
  let name = query.get("axis") ?? "";
  const select = h("select", { name: "axis", change: () => take(select.value, true) }, Object.entries(AXES).map(([value, { title }]) => h("option", { value }, title)));
  const chosen = () => (name in AXES ? name : first);
  function take(next, keep) {
    if (next === name) return;
    name = next;
    if (keep) change({ axis: next === first ? "" : next }, true);
    select.value = chosen();
    changed();
  }
  select.value = chosen();
  return { root: h("label", { class: "axis-choice" }, "curves over", select), chosen, ask: (next) => take(next.get("axis") ?? "", false) };
}

function showOverview(head, data, { state }) {
  const [name, box] = [head.querySelector("#state"), head.querySelector("#overview")];
  [name.textContent, name.className] = [state, `run-state ${state}`];
  box.removeAttribute("aria-busy");
  box.replaceChildren(overviewTiles(data, state));
}

/** The series of each metric. */
function seriesByMetric(rows, place) {
  const of = (name) => [{ name: rows[0].model, colour: charts.colourOf(0), points: charts.pointsOf(rows.filter((row) => row.name === name), place) }];
  return Object.fromEntries([...new Set(rows.map((row) => row.name))].map((name) => [name, of(name)]));
}

function facts(rows, rollouts) {
  rollouts.outcomes([...new Set(rows.flatMap((row) => Object.keys(row.outcomes)))].sort());
  if (!rows.length) return [empty("No rollout of this run has ended yet; this page shows the first as it does.")];
  return rolloutSets(rows).flatMap((set) => set.rows).map((row) => h("dl", { class: "fact" },
    h("dt", {}, setChip(row)),
    h("dd", {}, `${count(row.rollouts)} rollouts`),
    h("dd", {}, `${share(row.ended_well / row.rollouts)} ended well`),
    h("dd", {}, `${count(row.retried)} tried again`),
    h("dd", {}, row.version === null ? "no version" : `version ${row.version}`),
    h("dd", { title: `${clock(row.first_ms)} to ${clock(row.last_ms)}` }, `${seconds((row.last_ms - row.first_ms) / 1000)} long, last ${ago(row.last_ms)}`)));
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
