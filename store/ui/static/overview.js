// The head of a run: reward now and at best, how far it is, how fast it goes, its settings and its cost.

import { h } from "./dom.js";
import { count, figure, reward, seconds } from "./format.js";
import { setName } from "./rollout_set.js";
import { span } from "./run_charts.js";

const NAMES = { tokens: "tokens an hour", rollouts: "rollouts an hour" };

/** The tiles, from the answer of the question `overview`; `state` is the run's. */
export function overviewTiles(data, state) {
  return h("div", { class: "tiles" },
    data.rewards.map((set) => rewardTile(set)),
    progressTile(data, state),
    ["rollouts", "tokens"].map((name) => (data[`${name}_per_hour`] === null ? null : tile(NAMES[name], large(data[`${name}_per_hour`]), "over the last ten minutes of the run"))),
    costTile(data.cost, data.num_unpriced_calls),
    settingsTile(data.settings));
}

function tile(name, value, ...about) {
  return h("dl", { class: "tile" }, h("dt", {}, name), h("dd", { class: "value" }, value), about.filter(Boolean).map((line) => h("dd", { class: "about" }, line)));
}

/** The cost, which is null where nothing has had a price, and the calls that it leaves out. */
function costTile(cost, unpriced) {
  if (cost === null) return unpriced ? tile("calls without a price", count(unpriced), "to external models, by the settings") : null;
  return tile("cost", figure(cost), "of judges and external models, at the prices of the settings",
    unpriced ? `without ${count(unpriced)} model calls that have no price` : "");
}

const interval = (point) => (point.interval === null ? "" : ` (${point.interval.map((bound) => reward(bound)).join(" to ")})`);

/** The reward now, and the best there was, each with its 95 % interval. */
function rewardTile(set) {
  const { now, best } = set;
  const version = (point) => `version ${span(point.version, point.per_point)}, ${count(point.rollouts)} rollouts`;
  return h("dl", { class: "tile", data: { set: setName(set) } },
    h("dt", {}, set.mode === "train" ? "mean reward, training" : `mean reward, ${setName(set)}`),
    h("dd", { class: "value", title: version(now) }, reward(now.mean_reward), h("small", { title: "95 % interval" }, interval(now))),
    h("dd", { class: "about", title: version(best) }, best.version === now.version ? `its best; ${version(now)}` : `best ${reward(best.mean_reward)}${interval(best)} at version ${span(best.version, best.per_point)}`));
}

function progressTile({ step, num_steps: steps, seconds_left: left }, state) {
  if (step === null) return null;
  const goesOn = state === "running" || state === "";
  return h("dl", { class: "tile", id: "progress" },
    h("dt", {}, "step"),
    h("dd", { class: "value" }, steps ? [count(step), h("small", {}, ` of ${count(steps)}`)] : count(step)),
    steps ? h("dd", {}, h("progress", { max: steps, value: Math.min(step, steps), "aria-label": "Steps done" })) : null,
    goesOn && left !== null && left > 0 ? h("dd", { class: "about" }, `about ${seconds(left)} left`) : null);
}

function settingsTile(settings) {
  const names = Object.keys(settings);
  if (!names.length) return null;
  return h("dl", { class: "tile settings" }, h("dt", {}, "settings"),
    h("dd", {}, h("dl", {}, names.map((name) => h("div", {}, h("dt", {}, name), h("dd", {}, typeof settings[name] === "number" ? figure(settings[name]) : String(settings[name])))))));
}

const large = (value) => (value >= 1e6 ? `${figure(value / 1e6)} M` : value >= 1e4 ? `${figure(value / 1e3)} k` : count(value));
