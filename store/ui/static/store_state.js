// What the pages read: a running store, the files of a run that has ended, or nothing; then a banner says what to do.

const banner = document.getElementById("banner");
const listeners = new Set();
let state = "";

/** `live`, `finished`, `gone`, or nothing before the first answer. */
export const storeState = () => state;

/** Calls `listener` whenever the state changes. */
export const onStoreState = (listener) => listeners.add(listener);

/** Takes the state that came with an answer; `sentence` says what to do while the store is gone. */
export function setStoreState(next, sentence = "") {
  banner.hidden = next !== "gone";
  if (banner.textContent !== sentence) banner.textContent = sentence; // a screen reader reads each change
  if (next === state) return;
  state = next;
  document.body.dataset.store = next;
  for (const listener of listeners) listener();
}
