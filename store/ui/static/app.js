// Which page is shown: the part of the address behind #, so that every page can be linked to and the back button works.

import { h, showTip } from "./dom.js";
import { setRunState, showLive } from "./live.js";
import { linkTo, place } from "./place.js";
import { diffPage } from "./diff.js";
import { runsPage } from "./runs.js";
import { runPage } from "./run.js";
import { rolloutPage } from "./rollout.js";
import { missingPanel, watchRun } from "./run_watch.js";

const page = document.getElementById("page");
const crumbs = document.getElementById("crumbs");
let current = { path: null, leave: new AbortController(), update: () => {} };

function show() {
  const { path, names, query } = place();
  showTip(null);
  if (path === current.path) {
    current.update(query); // the same page, asked something else
    return;
  }
  current.leave.abort();
  const leave = new AbortController();
  page.replaceChildren();
  scrollTo(0, 0);
  showLive(null);
  setRunState("");
  const [kind, run, part, rollout] = names;
  crumbs.replaceChildren(...trail(kind === "run" ? run : null, part === "rollout" ? rollout : null));
  document.title = [rollout, run, "lightningbus"].filter(Boolean).join(" · ");
  const openPage = rollout ? rolloutPage : part === "diff" ? diffPage : run ? runPage : runsPage;
  current = { path, leave, update: () => {} };
  openIn(page, openPage, { run, rollout, query }, leave);
}

/** Opens a page; that of a run is closed while the run does not exist. */
function openIn(root, openPage, names, leave) {
  let content = null;
  const open = () => {
    content = new AbortController();
    leave.signal.addEventListener("abort", () => content.abort(), { once: true });
    root.replaceChildren();
    current.update = openPage(root, { ...names, query: place().query }, content.signal) ?? (() => {});
    if (!root.querySelector("h1")) root.prepend(h("h1", { class: "unseen" }, document.title)); // screen readers begin there
  };
  const missing = () => {
    content.abort();
    current.update = () => {};
    root.replaceChildren(missingPanel(`There is no run ${names.run} here`, "This store has no event of it. If it has just started, its page opens with its first event.", "#/", "All runs"));
  };
  open();
  if (names.run) watchRun(names.run, { open, missing }, leave.signal);
}

function trail(run, rollout) {
  const steps = [];
  if (run) steps.push(h("a", { href: linkTo(run) }, run));
  if (rollout) steps.push(h("span", {}, rollout));
  return steps;
}

addEventListener("hashchange", show);
show();
