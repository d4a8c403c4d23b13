// Every run there is, the one that moved last first: state, result, settings; chosen ones can be compared.

import { ask } from "./api.js";
import { empty, h, table } from "./dom.js";
import { ago, clock, count, figure, reward, seconds } from "./format.js";
import { follow, showLive } from "./live.js";
import { fill, panel } from "./panel.js";
import { change, linkTo } from "./place.js";

const COLUMNS = [
  { title: "run", class: "name", cell: named },
  { title: "state", cell: (row) => h("span", { class: `run-state ${row.state}` }, row.state) },
  { title: "steps", number: true, class: "wide", about: "training steps done, and the number set; of several models, those of the slowest", cell: steps },
  { title: "training reward", number: true, about: "mean of the last 200 training rollouts; of a run that is not the latest, of its last training step", cell: (row) => reward(trained(row)?.mean_reward) },
  { title: "evaluations, first and last version", about: "mean reward; a failed rollout counts as 0", cell: results },
  { title: "settings", class: "short-settings", cell: shortSettings },
  { title: "rollouts", number: true, class: "wide", cell: (row) => (row.sets.length ? count(row.sets.reduce((sum, set) => sum + set.rollouts, 0)) : "–") },
  { title: "began", class: "wide", cell: (row) => (row.first_ms ? clock(row.first_ms) : "–") },
  { title: "lasted", number: true, class: "wide", cell: (row) => (row.first_ms ? seconds((row.last_ms - row.first_ms) / 1000) : "–") },
  { title: "last event", number: true, cell: (row) => h("time", { title: clock(row.last_ms) }, ago(row.last_ms)) },
];

/** The first page. */
export function runsPage(root, { query }, signal) {
  let runs = [], list = null, words = query.get("search") ?? "", all = query.get("archived") === "1";
  const chosen = new Set();
  const search = h("input", { type: "search", name: "search", placeholder: "name, tag, state or settings", "aria-label": "Search runs", value: words, input: () => {
    words = search.value.trim();
    change({ search: words }, false);
    draw();
  } });
  const compare = h("a", { class: "button", id: "compare" });
  const archived = h("input", { type: "checkbox", name: "archived", change: () => {
    all = archived.checked;
    change({ archived: all ? "1" : "" }, false);
    draw();
  } });
  const choice = h("label", { hidden: true }, archived, " archived runs too");
  const box = panel("Runs", { name: "runs", height: 240, extra: h("div", { class: "run-tools" }, search, choice, compare) });
  root.append(box.root);

  function draw() {
    choice.hidden = !all && !runs.some((row) => row.is_archived);
    archived.checked = all;
    const next = listed(runs.filter((row) => (all || !row.is_archived) && matches(row, words)), words, chosen, offer);
    offer();
    if (list?.isEqualNode(next)) return; // keeps the focus where it is
    list = next;
    box.show(list);
  }

  function offer() {
    compare.textContent = chosen.size < 2 ? "Compare: choose two runs" : `Compare ${chosen.size} runs`;
    if (chosen.size < 2) compare.removeAttribute("href");
    else compare.href = `#/compare?runs=${[...chosen].map(encodeURIComponent).join(",")}`;
  }

  function fail(error) {
    list = null; // so that the next list takes the place of the error
    box.fail(error);
  }

  follow(() => fill({ show: draw, fail }, async () => { runs = await ask("runs", {}, signal); }, signal), signal, showLive);
  return (next) => {
    words = next.get("search") ?? "";
    all = next.get("archived") === "1";
    if (search.value.trim() !== words) search.value = words;
    draw();
  };
}

function listed(rows, words, chosen, changed) {
  if (!rows.length && words) return empty(`No run fits “${words}”.`);
  if (!rows.length) return empty("There is no run yet. Put tasks in and start a runner:", "lightningbus publish tasks.jsonl --run first");
  const pick = { title: "compare", cell: (row) => {
    const input = h("input", { type: "checkbox", "aria-label": `Compare ${row.run_id}`, change: () => {
      chosen[input.checked ? "add" : "delete"](row.run_id);
      changed();
    } });
    input.checked = chosen.has(row.run_id);
    return input;
  } };
  return table([pick, ...COLUMNS], rows, (row) => ({ class: "link", click: (event) => follows(event, linkTo(row.run_id)) }));
}

/** A click anywhere in a row is one on its link, unless text is being marked. */
export function follows(event, href) {
  if (!event.target.closest("a, input") && !String(getSelection())) location.hash = href;
}

/** A run's name, its tags, and the beginning of its note. */
function named(row) {
  return [h("a", { href: linkTo(row.run_id) }, row.run_id), row.tags.map((tag) => [" ", h("span", { class: "run-tag" }, tag)]),
    row.note ? h("small", { class: "run-note", title: row.note }, row.note) : null];
}

const trained = (row) => row.sets.find((set) => set.mode === "train");

function steps(row) {
  if (row.step === null) return "–";
  return row.max_steps ? `${count(row.step)} of ${count(row.max_steps)}` : count(row.step);
}

function results(row) {
  if (!row.results.length) return "–";
  return h("dl", { class: "results" }, row.results.map((result) => [
    h("dt", {}, result.evaluation || "eval"),
    h("dd", { title: `version ${result.first_version} and version ${result.last_version}` },
      result.first_version === result.last_version ? reward(result.last_mean) : `${reward(result.first_mean)} → ${reward(result.last_mean)}`)]));
}

const settingTexts = (row) => Object.entries(row.settings).map(([name, value]) => (name === "model" ? value : `${name} ${typeof value === "number" ? figure(value) : value}`));

/** A name and its value stay in one line. */
function shortSettings(row) {
  const texts = [...(row.models.length > 1 ? [`models ${row.models.join(", ")}`] : []), ...settingTexts(row)];
  return texts.length ? h("span", {}, texts.map((text) => h("span", { class: "short-setting" }, text))) : "–";
}

function matches(row, words) {
  const text = [row.run_id, row.state, ...row.tags, row.note, ...settingTexts(row), ...row.models, ...row.results.map((result) => result.evaluation)].join(" ").toLowerCase();
  return words.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}
