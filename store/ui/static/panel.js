// A box with a title whose content is replaced in place; what goes wrong is a sentence in it, not a blank page.

import { h } from "./dom.js";

/** `about` says what the figures mean, on the title where there is no room (`short`). The body keeps its height while it is empty, so nothing jumps. */
export function panel(title, { about = "", short = false, name = "", height = 0, extra = null } = {}) {
  const body = h("div", { class: "body", style: height ? { minHeight: `${height}px` } : {} });
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const root = h("section", { class: "panel", id: name || null },
    h("header", {}, h("h2", { title: about || null }, title), about && !short ? h("p", { class: "about" }, about) : null, extra),
    problem, body);
  return {
    root,
    show(...content) {
      problem.hidden = true;
      body.style.minHeight = ""; // what is there has a height of its own
      body.replaceChildren(...content);
    },
    fail(error) {
      problem.hidden = false;
      problem.textContent = error.message;
    },
  };
}

/** Fills a panel with what `load` makes; an error becomes its sentence, and is thrown on. */
export async function fill(box, load, signal) {
  try {
    const content = await load();
    if (!signal.aborted) box.show(content);
  } catch (error) {
    if (!signal.aborted) box.fail(error);
    throw error;
  }
}
