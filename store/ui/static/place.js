// Where the reader is: the part of the address behind #, a path and a query.

/** The path, its names, and the query. */
export function place() {
  const [path, query = ""] = location.hash.replace(/^#/, "").split("?");
  return { path: path || "/", names: path.split("/").slice(1).map(decodeURIComponent), query: new URLSearchParams(query) };
}

/** The address of a run, of a rollout, of one of its attempts. */
export function linkTo(run, rollout = "", query = {}) {
  const path = `#/run/${encodeURIComponent(run)}${rollout ? `/rollout/${encodeURIComponent(rollout)}` : ""}`;
  const search = String(new URLSearchParams(query));
  return search ? `${path}?${search}` : path;
}

/** The address of two rollouts compared. */
export const linkToDiff = (run, a, b) => `#/run/${encodeURIComponent(run)}/diff?${new URLSearchParams({ a, b })}`;

/** Changes the query of the page that is open; empty values are left out. A step is one the back button undoes. */
export function change(values, step) {
  const { path, query } = place();
  for (const [name, value] of Object.entries(values)) value ? query.set(name, value) : query.delete(name);
  const hash = String(query) ? `#${path}?${query}` : `#${path}`;
  if (step) history.pushState(null, "", hash);
  else history.replaceState(null, "", hash);
  return query;
}
