// A rollout as a chat: messages, thoughts and tool calls in their order, each once.

import { empty, h, pretty, textBox } from "./dom.js";

const SHORT = 90; // characters of a fold's first line
const KNOWN_ROLES = new Set(["system", "user", "assistant", "tool"]);

/** The chat, from the items of `conversation`; where there are several calls, each answer leads to its tokens. */
export function conversation(items, problem = "") {
  if (!items.length) return empty("No message of it is on record.");
  return h("ol", { class: "chat" }, items.map((item) => h("li", { class: `turn is-${item.kind} ${item.role ? `by-${item.role}` : ""}` }, KINDS[item.kind](item))),
    problem ? h("li", { class: "turn" }, h("p", { class: "problem" }, problem)) : null);
}

const KINDS = {
  break: (item) => h("p", { class: "known" }, item.summary_call !== null
    ? `The context was compacted: call ${item.call} begins with the summary that call ${item.summary_call} wrote.`
    : item.continues === null ? `Call ${item.call} begins another conversation.` : `Call ${item.call} goes on after call ${item.continues}.`),
  tool: (item) => h("details", { class: "fold tool-call" },
    h("summary", {}, h("span", { class: "role tool" }, "tool"), h("b", {}, item.tool), h("span", { class: "quiet" }, shortened(item.arguments)),
      item.result === null ? h("span", { class: "quiet" }, "no result on record") : h("span", { class: "quiet" }, ["→ ", shortened(item.result)])),
    h("h3", {}, "arguments"), h("pre", { tabindex: "0" }, pretty(item.arguments)),
    item.result === null ? null : [h("h3", {}, "result"), h("pre", { tabindex: "0" }, pretty(item.result))]),
  message: (item) => [
    h("div", { class: "turn-head" }, h("span", { class: `role ${KNOWN_ROLES.has(item.role) ? item.role : ""}` }, item.role),
      item.is_answer ? h("button", { type: "button", class: "to-tokens", click: () => document.getElementById(`call-${item.call}`)?.scrollIntoView() }, `tokens of call ${item.call}`) : null),
    item.thought ? h("details", { class: "fold" }, h("summary", {}, "thought ", h("span", { class: "quiet" }, shortened(item.thought))), textBox(item.thought)) : null,
    item.text || !item.thought ? textBox(item.text || "(nothing)") : null,
  ],
};

const shortened = (text) => {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > SHORT ? `${line.slice(0, SHORT)}…` : line;
};
