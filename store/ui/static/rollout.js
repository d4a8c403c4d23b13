// One rollout: its task, the conversation and what came of it; then its group, its trace, and the tokens of each call.

import { ask } from "./api.js";
import { callsPanel } from "./calls.js";
import { conversation } from "./conversation.js";
import { empty, h, table } from "./dom.js";
import { clock, count, figure, reward, seconds, versions } from "./format.js";
import { groupPanel } from "./group.js";
import { follow, showLive } from "./live.js";
import { panel } from "./panel.js";
import { linkTo, place } from "./place.js";
import { reviewPanel } from "./review.js";
import { setChip } from "./rollout_set.js";
import { namedRewardList, resultCard, taskCard } from "./rollout_story.js";
import { missingPanel } from "./run_watch.js";
import { waterfall } from "./waterfall.js";

/** The page of a rollout; it is asked for again until it has ended. */
export function rolloutPage(root, { run, rollout, query }, signal) {
  const group = groupPanel(run, rollout, signal);
  const head = h("section", { class: "head" }, h("div", { class: "headline" }, h("h1", {}, rollout), group.steps), h("div", { class: "facts" }, h("p", { class: "empty" }, "…")));
  const task = panel("Task", { name: "task", height: 60 }), result = panel("What came of it", { name: "result", height: 60 });
  const chat = panel("Conversation", { name: "chat", height: 200 });
  const attempts = panel("Attempts", { name: "attempts" });
  const trace = panel("Trace", { name: "trace", about: "Wide gaps in which nothing happened are cut short.", height: 220 });
  const reviews = reviewPanel(run, rollout, signal);
  const calls = callsPanel({ run_id: run, rollout_id: rollout });
  root.append(head, task.root, chat.root, result.root, reviews.root, attempts.root, group.root, trace.root, calls.root);
  let execution = query.get("execution_id"), drawn = "", ended = false;

  const look = async () => {
    if (drawn) await reviews.load();
    if (ended) return;
    let data;
    try {
      data = await ask("rollout", { run_id: run, rollout_id: rollout, execution_id: execution }, signal);
    } catch (error) {
      if (error.status === 404) {
        ended = true;
        root.replaceChildren(missingPanel(execution ? "There is no such attempt" : `There is no rollout ${rollout} here`, error.message, linkTo(run), `Run ${run}`));
        return;
      }
      if (!signal.aborted) trace.fail(error);
      throw error;
    }
    ended = data.attempts.some((item) => item.counts) && data.uses.length >= Math.max(1, modelsOf(data.attempt).length); // nothing comes after its training
    const now = JSON.stringify(data);
    if (now === drawn) return;
    drawn = now;
    const params = place().query; // its span and colour change without a question
    head.lastChild.replaceChildren(...facts(data));
    showOrHide(task, taskCard(data.task));
    showOrHide(result, resultCard(data));
    reviews.use(data.execution_id);
    reviews.root.hidden = !data.attempt || data.attempt.running;
    reviews.load().catch(() => {}); // it stands in the panel
    chat.show(conversation(data.conversation));
    showOrHide(attempts, data.attempts.length === 1 && data.attempts[0].counts ? null : listed(data, run));
    trace.show(data.spans.length ? waterfall(data, params.get("span") ?? "") : empty("No span of it has been stored yet."));
    if (data.spans_cut) trace.fail(new Error("This attempt has very many spans; only the first 2,000 are shown."));
    calls.show(data, params.get("colour") ?? "");
    if (data.attempts.some((item) => item.counts)) group.load().catch(() => {}); // it stands in the panel
    else group.show(empty("Shown when this rollout has ended."));
  };
  follow(look, signal, showLive);
  return (next) => {
    if (next.get("execution_id") === execution) return;
    [execution, drawn, ended] = [next.get("execution_id"), "", false];
    look().catch(() => {}); // it stands in the panel
  };
}

/** Shows a card, or hides its panel where there is none. */
function showOrHide(box, card) {
  box.root.hidden = card === null;
  if (card) box.show(card);
}

function facts({ attempt, task, uses, run_id: run }) {
  const fact = (name, ...value) => h("dl", { class: "fact" }, h("dt", {}, name), h("dd", {}, ...value));
  if (!attempt) return [fact("state", "published, taken by nobody yet"), fact("published", clock(task.enqueued_ms))];
  if (attempt.running) return [fact("state", h("span", { class: "outcome" }, "at work")), fact("attempt", attempt.attempt), fact("began", clock(attempt.started_ms, true))];
  const models = modelsOf(attempt);
  const rewards = namedRewardList(attempt.rewards ?? {});
  const training = (use) => (use.trained ? [h("a", { href: linkTo(run, "", { step: use.step, ...(models.length > 1 ? { model: use.model } : {}) }) }, `step ${use.step}`), `, advantage ${use.advantage.toFixed(3)}, ${use.max_staleness} behind`]
    : [`left out of step ${use.step}: ${use.exclusion_reason}`]);
  return [
    fact("outcome", h("span", { class: `outcome ${attempt.outcome}` }, attempt.outcome)),
    fact("reward", h("b", {}, reward(attempt.reward))),
    rewards ? fact("rewards by name", rewards) : null,
    fact("mode", setChip(attempt)),
    fact("attempt", attempt.attempt),
    fact("versions", models.length > 1 ? models.map((model) => `${model} ${attempt.newest_versions[model]}`).join(", ") : versions(attempt.min_weight_version, attempt.max_weight_version)),
    fact("took", seconds((attempt.ended_ms - attempt.started_ms) / 1000)),
    fact("in queue", seconds(Math.max(0, attempt.started_ms - attempt.enqueued_ms) / 1000)),
    fact("tokens", `${count(attempt.response_tokens)} sampled in ${count(attempt.num_calls)} calls`),
    attempt.num_external_calls ? fact("external models", externalCalls(attempt)) : null,
    ...(uses.length ? uses.map((use) => fact(models.length > 1 ? `training of ${use.model}` : "training", training(use))) : [fact("training", "not trained on")]),
    attempt.error ? h("p", { class: "problem" }, attempt.error) : null,
  ].filter(Boolean);
}

/** The calls to external models in words; a cost only where one of them has a price. */
function externalCalls({ num_external_calls: calls, num_unpriced_calls: unpriced, external_cost: cost }) {
  return [`${count(calls)} calls`, unpriced < calls ? `cost ${figure(cost)}` : "", unpriced ? `${count(unpriced)} without a price` : ""].filter(Boolean).join(", ");
}

/** The models that answered an attempt. */
const modelsOf = (attempt) => Object.keys(attempt?.newest_versions ?? {});

function listed({ attempts, attempt, rollout_id: rollout }, run) {
  if (!attempts.length) return empty("Published, and taken by nobody yet. Start a runner with", "lightningbus runner --entrypoint module:function");
  return table([
    { title: "attempt", number: true, cell: (item) => h("a", { href: linkTo(run, rollout, { execution_id: item.execution_id }) }, item.attempt) },
    { title: "counts", cell: (item) => (item.counts ? h("span", { class: "chip counts" }, "counts") : "") },
    { title: "outcome", cell: (item) => h("span", { class: `outcome ${item.outcome ?? ""}` }, item.running ? "at work" : item.outcome) },
    { title: "reward", number: true, cell: (item) => reward(item.reward) },
    { title: "runner", cell: (item) => item.runner ?? "–" },
    { title: "calls", number: true, cell: (item) => count(item.num_calls) },
    { title: "began", class: "wide", cell: (item) => clock(item.started_ms, true) },
    { title: "took", number: true, cell: (item) => (item.running ? "–" : seconds((item.ended_ms - item.started_ms) / 1000)) },
    { title: "error", class: "doing", cell: (item) => item.error ?? "" },
  ], attempts, (item) => ({ class: item.execution_id === attempt?.execution_id ? "chosen" : null }));
}
