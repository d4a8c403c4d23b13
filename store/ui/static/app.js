// Which page is shown: the part of the address behind #, so that every page can be linked to and the back button works.

import { comparePage } from "./compare.js";
import { h, showTip } from "./dom.js";
import { showLive } from "./live.js";
import { linkTo, place } from "./place.js";
import { runsPage } from "./runs.js";
import { runPage } from "./run.js";
import { rolloutPage } from "./rollout.js";

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
  showLive(null, true);
  const [kind, run, part, rollout] = names;
  crumbs.replaceChildren(...trail(kind === "run" ? run : null, part === "rollout" ? rollout : null));
  document.title = [rollout, run, "lightningbus"].filter(Boolean).join(" · ");
  const open = kind === "compare" ? comparePage : rollout ? rolloutPage : run ? runPage : runsPage;
  current = { path, leave, update: open(page, { run, rollout, query }, leave.signal) ?? (() => {}) };
}

function trail(run, rollout) {
  const steps = [];
  if (run) steps.push(h("a", { href: linkTo(run) }, run));
  if (rollout) steps.push(h("span", {}, rollout));
  return steps;
}

addEventListener("hashchange", show);
show();
