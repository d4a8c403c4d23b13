// Several runs beside each other: their curves in the same charts, and the settings that differ.

import { ask } from "./api.js";
import { empty, h, table } from "./dom.js";
import { follow, showLive } from "./live.js";
import { metricCharts } from "./metrics.js";
import { namedRewards } from "./named_rewards.js";
import { fill, panel } from "./panel.js";
import { linkTo } from "./place.js";
import { colourOf, pointsOf, rewardChart, rewardSeries } from "./run_charts.js";
import { differingSettings } from "./settings_diff.js";
import { placesOn } from "./x_axis.js";

const [STEPS, VERSIONS] = ["step", "version"].map((by) => placesOn(by, [], by));

/** The page of a comparison: `runs` of the query, separated by commas. */
export function comparePage(root, { query }, signal) {
  const runs = [...new Set((query.get("runs") ?? "").split(",").filter(Boolean))];
  const head = h("section", { class: "head" }, h("h1", {}, "Compare"), h("ul", { class: "legend", id: "compared" }, runs.map((run, place) =>
    h("li", {}, h("i", { class: "swatch", style: { background: colourOf(place) } }), h("a", { href: linkTo(run) }, run)))));
  root.append(head);
  if (runs.length < 2) {
    root.append(empty("Choose two or more runs on the first page, or name them in the address:", "#/compare?runs=first,second"));
    return undefined;
  }
  const each = (question, parameters = {}) => Promise.all(runs.map((run) => ask(`run/${question}`, { run_id: run, ...parameters }, signal)));
  const rewards = panel("Mean reward", { name: "chart-rewards", about: "By weight version, with the standard error of the mean. Training: lines in bands. Evaluations: marks.", height: 250 });
  const named = namedRewards(signal, (rows) => rewardsByRun(runs, runs.map((run) => rows.filter((row) => row.run === run))));
  const settings = panel("Settings that differ", { name: "settings", about: "Settings of the last training step that differ.", height: 120 });
  const metrics = metricCharts({
    listMetrics: async () => [...new Map((await each("metric_names")).flat().map((row) => [row.name, row])).values()].sort((a, b) => a.name.localeCompare(b.name)),
    loadSeries: async (names) => seriesByMetric(runs, await each("metrics", { names: names.join(",") })),
    axis: () => STEPS.axis(),
    query, signal,
  });
  root.append(rewards.root, named.root, settings.root, metrics.root);

  let seen = "";
  follow(async () => {
    const token = JSON.stringify(await each("change_token"));
    if (token === seen) return;
    await Promise.all([
      fill(rewards, async () => rewardChart(rewardsByRun(runs, await each("rewards")), VERSIONS.axis()), signal),
      named.load(each("named_rewards").then((answers) => answers.flatMap((rows, place) => rows.map((row) => ({ ...row, run: runs[place] })))), { version: VERSIONS }),
      fill(settings, async () => settingsTable(runs, await each("settings")), signal),
      metrics.load(),
    ]);
    seen = token;
  }, signal, showLive);
  return (next) => {
    if (next.get("runs") !== query.get("runs")) location.reload();
    else metrics.ask(next);
  };
}

function rewardsByRun(runs, answers) {
  return answers.flatMap((rows, place) => byModel(rows, runs[place]).flatMap(([name, ofModel]) => rewardSeries(ofModel, { colour: () => colourOf(place), name: (set) => `${name} ${set.name}` })));
}

function seriesByMetric(runs, answers) {
  const names = [...new Set(answers.flat().map((row) => row.name))];
  return Object.fromEntries(names.map((metric) => [metric, answers.flatMap((rows, place) => byModel(rows, runs[place]).map(([name, ofModel]) => ({
    name, colour: colourOf(place), points: pointsOf(ofModel.filter((row) => row.name === metric), STEPS.at),
  })))]));
}

/** Rows of a run by model, each with the name of its series: the run's, with the model where there are several. */
function byModel(rows, run) {
  const models = [...new Set(rows.map((row) => row.model))];
  return models.map((model) => [models.length > 1 ? `${run} ${model}` : run, rows.filter((row) => row.model === model)]);
}

function settingsTable(runs, answers) {
  const rows = differingSettings(answers);
  if (!rows.length) return empty("No setting differs.");
  return table([
    { title: "setting", cell: (row) => row.name },
    ...runs.map((run, place) => ({ title: run, class: "setting", cell: (row) => row.values[place] ?? "–" })),
  ], rows);
}
