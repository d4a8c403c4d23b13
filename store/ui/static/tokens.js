// Sampled tokens, coloured by what training or sampling made of them.

import { h, pairs, showTip } from "./dom.js";
import { figure } from "./format.js";

const UNKNOWN = "transparent";
const STALE = 4; // versions behind at which the colour is full

/** What a colour can show: its title, what it means, and the colour of a token of a call. */
export const COLOURS = {
  advantage: { title: "advantage", about: "advantage of the token's call in training", of: (call) => diverging(call.advantage) },
  staleness: { title: "staleness", about: "versions between sampling and training", of: (call, place) => mixed("--stale", stalenessOf(call, place), STALE) },
  probability: { title: "probability", about: "probability with which the token was sampled", of: (call, place) => mixed("--rare", call.logprobs[place] === undefined ? null : 1 - Math.exp(call.logprobs[place]), 1) },
};

/** Versions a token was behind when it was trained on; null: it was not. */
function stalenessOf(call, place) {
  return call.trained_version === null || call.versions[place] === undefined ? null : Math.max(0, call.trained_version - 1 - call.versions[place]);
}

function diverging(value) {
  if (value === null) return UNKNOWN;
  return mixed(value < 0 ? "--worse" : "--better", Math.sqrt(Math.min(1, Math.abs(value))), 1);
}

function mixed(colour, value, full) {
  if (value === null || !(value > 0)) return UNKNOWN;
  return `color-mix(in oklab, var(${colour}) ${Math.round(10 + 70 * Math.min(1, value / full))}%, transparent)`;
}

/** The tokens of a call's answer as one text; `paint` of it changes what the colour shows. Arrow keys go from token to token. */
export function tokensOf(call) {
  const pieces = call.tokens.map((id, place) => h("span", { class: "token", data: { place }, tabindex: place ? "-1" : "0" }, pieceOf(call, place)));
  const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };
  const root = h("div", {
    class: "text tokens", role: "group", "aria-label": `Tokens of call ${call.call}; arrow keys go from token to token`,
    keydown: (event) => {
      const place = Number(event.target.dataset.place);
      if (!(event.key in steps) || Number.isNaN(place)) return;
      event.preventDefault();
      pieces[Math.max(0, Math.min(pieces.length - 1, place + steps[event.key]))].focus();
    },
    focusin: (event) => {
      for (const token of root.querySelectorAll('.token[tabindex="0"]')) token.tabIndex = -1;
      event.target.tabIndex = 0; // Tab comes back to this token
      const { left, bottom } = event.target.getBoundingClientRect();
      showTip(pairs(facts(call, Number(event.target.dataset.place))), left, bottom);
    },
    focusout: () => showTip(null),
    pointermove: (event) => {
      const token = event.target.closest(".token");
      showTip(token ? pairs(facts(call, Number(token.dataset.place))) : null, event.clientX, event.clientY);
    },
    pointerleave: () => showTip(null),
  }, pieces);
  root.paint = (name) => pieces.forEach((token, place) => { token.style.backgroundColor = COLOURS[name].of(call, place); });
  return root;
}

/** A token's text; one that is empty, or whose text nobody said, is shown as its id. */
function pieceOf(call, place) {
  return call.token_texts[place] || `⟨${call.tokens[place]}⟩`;
}

function facts(call, place) {
  const behind = stalenessOf(call, place);
  return [
    ["token", `${JSON.stringify(pieceOf(call, place))} · id ${call.tokens[place]}`],
    ["probability", call.logprobs[place] === undefined ? "–" : `${figure(Math.exp(call.logprobs[place]))} (log ${figure(call.logprobs[place])})`],
    ["version", call.versions[place] ?? "–"],
    ["advantage", call.advantage === null ? "not trained on" : figure(call.advantage)],
    ["staleness", behind === null ? "not trained on" : `${behind} behind`],
  ];
}

const SCALES = {
  advantage: [["−1", diverging(-1)], ["−0.25", diverging(-0.25)], ["0", UNKNOWN], ["+0.25", diverging(0.25)], ["+1", diverging(1)]],
  staleness: [0, 1, 2, 3, 4].map((behind) => [behind === STALE ? `${behind} or more` : String(behind), mixed("--stale", behind, STALE)]),
  probability: [1, 0.75, 0.5, 0.25, 0].map((chance) => [String(chance), mixed("--rare", 1 - chance, 1)]),
};
const UNITS = { advantage: "advantage", staleness: "versions behind", probability: "probability" };

/** What the colours mean, and a word where there is nothing for them to show. */
export function legendOf(name, calls) {
  const untrained = name !== "probability" && calls.every((call) => call.advantage === null);
  return h("div", { class: "scale" }, h("span", {}, UNITS[name]),
    SCALES[name].map(([label, colour]) => h("span", { class: "stop" }, h("i", { class: "swatch", style: { backgroundColor: colour } }), label)),
    untrained ? h("em", {}, "This attempt was not trained on, so its tokens have no colour.") : null);
}
