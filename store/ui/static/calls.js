// Model calls in their order: what is known of each, and its answer token by token. Their texts stand in the conversation.

import { ask } from "./api.js";
import { empty, h, pretty } from "./dom.js";
import { seconds, versions } from "./format.js";
import { panel } from "./panel.js";
import { change } from "./place.js";
import { COLOURS, legendOf, tokensOf } from "./tokens.js";

/** The panel; `show` fills it with a rollout's calls in one of `COLOURS`, or in the one that tells most. */
export function callsPanel(of) {
  let calls = [], execution = "";
  const key = h("div", { class: "key" });
  const buttons = Object.entries(COLOURS).map(([name, item]) => h("button", { type: "button", data: { colour: name }, "aria-pressed": "false", title: item.about, click: () => paint(name, true) }, item.title));
  const box = panel("Model calls and tokens", { name: "calls", about: "The answer of each call, token by token.", height: 200, extra: h("div", { class: "switch", role: "group", "aria-label": "What the colour of a token shows" }, h("span", {}, "colour"), buttons) });

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
    h("header", {}, h("h3", {}, `Call ${call.call}`), h("p", {}, facts.filter(Boolean).join(" · ")), whole(call, of), prompt(call, of)),
    known ? h("p", { class: "known" }, known) : null,
    call.summary_call === null ? null : h("p", { class: "known compacted" }, `compacted: begins with the summary that call ${call.summary_call} wrote`),
    call.tokens.length ? tokensOf(call) : h("p", { class: "hint" }, "No token of this call is on record."));
}

const signed = (value) => `${value > 0 ? "+" : ""}${value.toFixed(3)}`;

const whole = (call, of) => loaded("whole request", async () => pretty((await ask("request", { ...of, call: String(call.call) })).request));

const prompt = (call, of) => loaded("what the model read", async () => (await ask("prompt", { ...of, call: String(call.call) })).prompt);

/** A text that is loaded when it is opened. */
function loaded(title, load) {
  const text = h("pre", { tabindex: "0" });
  return h("details", {
    async toggle(event) {
      if (!event.target.open || text.textContent) return;
      text.textContent = "…";
      try {
        text.textContent = await load();
      } catch (error) {
        text.textContent = error.message;
      }
    },
  }, h("summary", {}, title), text);
}
