// What the server knows, as JSON.

import { setStoreState } from "./store_state.js";

const STORE_HEADER = "Lightningbus-Store";
const NO_SERVER = "lightningbus ui does not answer. Start it again with the same --port; this page goes on by itself.";
const UNREADABLE = "The answer of lightningbus ui is cut off or not JSON.";

/** The answer of one endpoint; throws an Error whose message is a sentence to show, with the answer's `status`. */
export async function ask(path, parameters = {}, signal = null) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "") query.set(name, value);
  }
  return answerOf(() => fetch(`/api/${path}?${query}`, { signal }));
}

/** Sends JSON to an endpoint; its answer and errors are those of `ask`. */
export function send(path, value, signal = null) {
  return answerOf(() => fetch(`/api/${path}`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(value), signal }));
}

async function answerOf(fetchIt) {
  let response;
  try {
    response = await fetchIt();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    setStoreState("gone", NO_SERVER);
    throw new Error(NO_SERVER);
  }
  const body = await response.json().catch((error) => {
    if (error.name === "AbortError") throw error; // the page was left while the answer came
    return null;
  });
  const sentence = body?.error ?? (response.ok ? UNREADABLE : `the server said ${response.status}`);
  setStoreState(response.headers.get(STORE_HEADER), response.status === 503 ? sentence : "");
  if (!response.ok || body === null) throw Object.assign(new Error(sentence), { status: response.status });
  return body;
}
