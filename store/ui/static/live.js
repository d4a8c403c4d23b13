// Asking again while a page is open and seen, but never more than a third of the time.

import { onStoreState, storeState } from "./store_state.js";

const EVERY_MS = 2000;
const REST = 2; // of the time an answer took, so that a busy store is not kept busy by looking at it

/** Runs `look` now and every two seconds until the signal; not while the tab is hidden. `said` hears of its end. */
export async function follow(look, signal, report = () => {}) {
  while (!signal.aborted) {
    const began = performance.now();
    try {
      await look();
      report(null);
    } catch (error) {
      if (signal.aborted) return;
      report(error);
    }
    await pause(Math.max(EVERY_MS, REST * (performance.now() - began)), signal);
    while (document.hidden && !signal.aborted) await once(document, "visibilitychange", signal);
  }
}

function pause(ms, signal) {
  return new Promise((done) => {
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", () => { clearTimeout(timer); done(); }, { once: true });
  });
}

function once(target, event, signal) {
  return new Promise((done) => {
    target.addEventListener(event, done, { once: true });
    signal.addEventListener("abort", done, { once: true });
  });
}

const light = document.getElementById("live");
const TITLES = {
  live: "This page refreshes every two seconds.",
  files: "The latest run has ended. The page reads its files.",
  running: "The run goes on. This page refreshes every two seconds.",
  idle: "Nothing has happened in this run for two minutes. Whether it goes on is not known.",
  finished: "The run has made all its training steps.",
  stopped: "The run ended before its last training step.",
  ended: "The run has ended. It trained nothing.",
};
let problem = null, runState = "";

/** Takes the state of the run that is open; empty: no run is open, so the light shows the store's. */
export function setRunState(state) {
  runState = state;
  draw();
}

/** The light at the top of every page: the state of the run or of the store, or the sentence why the page does not refresh. */
export function showLive(error) {
  problem = error;
  draw();
}

function draw() {
  const gone = problem !== null || storeState() === "gone";
  const state = runState || (storeState() === "finished" ? "files" : storeState());
  light.className = gone ? "live bad" : state === "live" || state === "running" ? "live on" : "live still";
  light.dataset.state = state;
  light.textContent = gone ? "not live" : state in TITLES ? state : "";
  light.title = problem?.message ?? TITLES[state] ?? "";
}

onStoreState(draw);
