// What the server knows, as JSON.

/** The answer of one endpoint; throws an Error whose message is a sentence to show. */
export async function ask(path, parameters = {}, signal = null) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "") query.set(name, value);
  }
  let response;
  try {
    response = await fetch(`/api/${path}?${query}`, { signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("lightningbus ui does not answer: has it been stopped?");
  }
  const body = await response.json().catch(() => ({ error: `the server said ${response.status}` }));
  if (!response.ok) throw new Error(body.error ?? `the server said ${response.status}`);
  return body;
}
