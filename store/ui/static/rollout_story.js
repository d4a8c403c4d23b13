// What a rollout was about and what came of it: its task, result, judges' words, prints and files.

import { h, pretty, textBox } from "./dom.js";
import { count, figure, reward } from "./format.js";

const part = (title, ...content) => h("div", { class: "part" }, h("h3", {}, title), ...content);
const fold = (title, text) => h("details", { class: "fold" }, h("summary", {}, title), h("pre", { tabindex: "0" }, text));

/** The task: question, expected answer, labels, and what else its input has. */
export function taskCard(task) {
  if (!task) return null;
  const labels = Object.entries(task.labels);
  const fields = Object.entries(task.fields);
  return h("div", { class: "story" },
    task.question ? part("question", textBox(pretty(task.question))) : null,
    task.expected ? part("expected answer", textBox(pretty(task.expected))) : null,
    labels.length ? part("labels", h("p", {}, labels.map(([name, value]) => [h("span", { class: "chip" }, `${name}: ${value}`), " "]))) : null,
    fields.length ? part("other fields", h("dl", { class: "pairs" }, fields.map(([name, value]) => [h("dt", {}, name), h("dd", {}, pretty(value))]))) : null);
}

/** What came of it; null where there is nothing beside the reward at the top. */
export function resultCard({ attempt, judgements, artifacts, printed }) {
  const parts = [
    hasResult(attempt) ? part("result", h("pre", { class: "text", tabindex: "0" }, pretty(attempt.result))) : null,
    judgements.length ? part("judges", judgements.map(judgement)) : null,
    printed ? part("what the agent printed", fold(`${count(printed.trimEnd().split("\n").length)} lines`, printed)) : null,
    artifacts.length ? part("files", artifacts.map(artifact)) : null,
  ].filter(Boolean);
  return parts.length ? h("div", { class: "story" }, parts) : null;
}

/** Whether a result says more than the reward does. */
function hasResult(attempt) {
  if (!attempt?.result || attempt.result === "null") return false;
  return Number(attempt.result) !== attempt.reward;
}

function judgement(item) {
  const facts = [item.model, item.is_cached ? "from the cache" : `${count(item.prompt_tokens)} + ${count(item.response_tokens)} tokens`, item.cost ? `cost ${figure(item.cost)}` : ""];
  return h("div", { class: "judgement" }, h("p", {}, h("b", {}, item.grader), h("span", { class: "quiet" }, ` ${facts.filter(Boolean).join(" · ")}`)), textBox(item.text));
}

function artifact(item) {
  const title = `${item.name}, ${count(item.bytes)} bytes`;
  return fold(title, item.encoding === "base64" ? `base64, SHA-256 ${item.sha256}\n${item.content}` : item.content);
}

/** Rewards by name beside their values. */
export const namedRewardList = (rewards) => Object.entries(rewards).map(([name, value]) => `${name} ${reward(value)}`).join(", ");
