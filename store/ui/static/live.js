// Asking again while a page is open and seen, but never more than a third of the time.

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

/** The light at the top of every page: live, or the sentence why not. */
export function showLive(error, still = false) {
  light.className = error ? "live bad" : still ? "live still" : "live on";
  light.textContent = error ? "not live" : still ? "" : "live";
  light.title = error ? error.message : "";
}
