// What people say about a rollout: scores, notes, and the data sets that it is added to.

import { ask, send } from "./api.js";
import { h } from "./dom.js";
import { ago, figure } from "./format.js";
import { fill, panel } from "./panel.js";

const KEY = "lightningbus-reviewer";

function storedName() {
  try { return localStorage.getItem(KEY) ?? ""; } catch { return ""; }
}

/** The panel; `load` asks for the reviews, `use` says which attempt a new one is about. */
export function reviewPanel(run, rollout, signal) {
  const list = h("ul", { class: "reviews" }), files = h("p", { class: "quiet" }), sets = h("datalist", { id: "datasets" });
  const outcome = h("p", { class: "quiet", role: "status" });
  let execution = "";
  const field = (label, input) => h("label", { class: "field" }, h("span", {}, label), input);
  const score = h("input", { name: "score", type: "number", step: "any" });
  const note = h("textarea", { name: "note", rows: 2, maxlength: 4000 });
  const dataset = h("input", { name: "dataset", list: "datasets", maxlength: 64, autocomplete: "off", placeholder: "name of a data set" });
  const reviewer = h("input", { name: "reviewer", maxlength: 64, autocomplete: "off", placeholder: "who you are" });
  reviewer.value = storedName();
  const form = h("form", { class: "review-form", submit: (event) => { event.preventDefault(); save(); } },
    field("score", score), field("note", note), field("add to a data set", dataset), field("reviewer", reviewer), h("button", { type: "submit" }, "Save review"));
  const box = panel("Reviews", { name: "reviews", about: "Scores and notes of people: events on the bus, and the view reviews in SQL." });

  async function save() {
    outcome.textContent = "saving …";
    try { localStorage.setItem(KEY, reviewer.value.trim()); } catch { /* it is typed again */ }
    const review = { run_id: run, rollout_id: rollout, execution_id: execution, reviewer: reviewer.value.trim(), note: note.value.trim(), dataset: dataset.value.trim(), score: score.value === "" ? null : Number(score.value) };
    try {
      await send("rollout/reviews", review, signal);
      [score.value, note.value] = ["", ""];
      outcome.textContent = "Saved. It is listed as soon as the store has it.";
    } catch (error) {
      outcome.textContent = error.message;
    }
  }

  const draw = ({ reviews, datasets }) => {
    list.replaceChildren(...reviews.map((item) => h("li", {}, h("b", {}, item.reviewer || "somebody"), " ",
      item.score === null ? null : h("span", { class: "chip" }, `score ${figure(item.score)}`), item.dataset ? h("span", { class: "chip" }, `in ${item.dataset}`) : null,
      h("span", { class: "quiet" }, ` ${ago(item.reviewed_ms)}`), item.note ? h("p", { class: "text" }, item.note) : null)));
    sets.replaceChildren(...datasets.map((item) => h("option", { value: item.dataset })));
    files.replaceChildren(...datasets.flatMap((item) => [`data set ${item.dataset}, ${item.rollouts} rollouts: `, ...["tasks", "chats"].flatMap((kind) => [
      h("a", { href: `/api/run/dataset?${new URLSearchParams({ run_id: run, dataset: item.dataset, kind })}`, download: "" }, kind), " "])]));
  };

  const content = h("div", {}, list, form, outcome, files, sets);
  return {
    root: box.root,
    use: (id) => { execution = id; },
    load: () => fill({ show: () => content.isConnected || box.show(content), fail: box.fail }, async () => {
      draw(await ask("rollout/reviews", { run_id: run, rollout_id: rollout }, signal)); // the form keeps what is typed
    }, signal),
  };
}
