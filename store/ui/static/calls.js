// Model calls in their order: what each was asked anew, and what it answered, token by token.

import { ask } from "./api.js";
import { empty, h } from "./dom.js";
import { seconds, versions } from "./format.js";
import { panel } from "./panel.js";
import { change } from "./place.js";
import { COLOURS, legendOf, tokensOf } from "./tokens.js";

/** The panel; `show` fills it with a rollout's calls in one of `COLOURS`, or in the one that tells most. */
export function callsPanel(of) {
  let calls = [], execution = "";
  const key = h("div", { class: "key" });
  const buttons = Object.entries(COLOURS).map(([name, item]) => h("button", { type: "button", data: { colour: name }, "aria-pressed": "false", title: item.about, click: () => paint(name, true) }, item.title));
  const box = panel("Model calls", { name: "calls", height: 200, extra: h("div", { class: "switch", role: "group", "aria-label": "What the colour of a token shows" }, h("span", {}, "colour"), buttons) });

  function paint(name, keep = false) {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.colour === name));
    key.replaceChildren(legendOf(name, calls));
    for (const item of box.root.querySelectorAll(".tokens")) item.paint(name);
    if (keep) change({ colour: name }, false);
  }

  return {
    root: box.root,
    show(data, colour) {
      [calls, execution] = [data.calls, data.execution_id];
      if (!calls.length) {
        box.show(empty("This attempt has made no model call."));
        return;
      }
      const several = new Set(calls.map((call) => call.model)).size > 1;
      box.show(key, h("ol", { class: "calls" }, calls.map((call) => h("li", { id: `call-${call.call}` }, described(call, { ...of, execution_id: execution }, several)))));
      const trained = calls.some((call) => call.advantage !== null);
      paint(colour in COLOURS ? colour : trained ? "advantage" : "probability");
    },
  };
}

function described(call, of, several) {
  const known = call.known ? `continues call ${call.continues}: ${call.known === 1 ? "its first message is" : `its first ${call.known} messages are`} the same` : "";
  const facts = [call.role, several && call.model !== call.role ? call.model : "", call.node, `${call.prompt_tokens} + ${call.response_tokens} tokens`, `version ${versions(call.min_weight_version, call.max_weight_version)}`,
    call.advantage === null ? "" : `advantage ${signed(call.advantage)}`, seconds((call.end_ms - call.start_ms) / 1000), `ended by ${call.finish_reason || "nothing said"}`];
  return h("article", { class: "call" },
    h("header", {}, h("h3", {}, `Call ${call.call}`), h("p", {}, facts.filter(Boolean).join(" · ")), whole(call, of)),
    known ? h("p", { class: "known" }, known) : null,
    call.summary_call === null ? null : h("p", { class: "known compacted" }, `compacted: begins with the summary that call ${call.summary_call} wrote`),
    call.messages.map((message) => messageOf(String(message?.role ?? "message"), textBox(textOf(message)))),
    messageOf("assistant", call.tokens.length ? tokensOf(call) : textBox(textOf(call.answer))));
}

const signed = (value) => `${value > 0 ? "+" : ""}${value.toFixed(3)}`;

/** A text; one that may be long enough to scroll is reached by keyboard. */
const textBox = (text) => h("div", { class: "text", tabindex: text.length > 400 || text.split("\n").length > 12 ? "0" : null }, text);

function messageOf(role, content) {
  return h("div", { class: "message" }, h("span", { class: `role ${["system", "user", "assistant", "tool"].includes(role) ? role : ""}` }, role), content);
}

/** What a message says: its text, else all of it. */
function textOf(message) {
  if (message === null || typeof message !== "object") return String(message ?? "");
  const { content } = message;
  const text = typeof content === "string" ? content
    : Array.isArray(content) ? content.map((part) => (typeof part?.text === "string" ? part.text : JSON.stringify(part))).join("\n")
      : content ? JSON.stringify(content, null, 2) : "";
  const calls = message.tool_calls?.length ? JSON.stringify(message.tool_calls, null, 2) : "";
  return [text, calls].filter(Boolean).join("\n") || (content === undefined ? JSON.stringify(message, null, 2) : "(nothing)");
}

function whole(call, of) {
  const text = h("pre", { tabindex: "0" });
  return h("details", {
    async toggle(event) {
      if (!event.target.open || text.textContent) return;
      text.textContent = "…";
      try {
        const { request } = await ask("request", { ...of, call: String(call.call) });
        text.textContent = indented(request);
      } catch (error) {
        text.textContent = error.message;
      }
    },
  }, h("summary", {}, "whole request"), text);
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
