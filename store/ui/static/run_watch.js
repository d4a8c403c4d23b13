// Whether a run goes on, for the light at the top; a run that does not exist is said not to exist.

import { ask } from "./api.js";
import { h } from "./dom.js";
import { follow, setRunState } from "./live.js";

/** Looks at the state of a run until the signal. `open` and `missing` are called when the run appears or is missing. */
export function watchRun(run, { open, missing }, signal) {
  let exists = true; // the page is open before the first answer
  follow(async () => {
    const { state } = await ask("run/state", { run_id: run }, signal);
    setRunState(state);
    if (exists === (state !== "missing")) return;
    exists = !exists;
    (exists ? open : missing)();
  }, signal);
}

/** What stands in the page of a run or rollout that is not there. */
export function missingPanel(title, sentence, href, link) {
  return h("section", { class: "panel missing", role: "alert" }, h("h1", {}, title), h("p", {}, sentence), h("p", {}, h("a", { href }, link)));
}
