// A box with a title whose content is replaced in place; what goes wrong is a sentence in it, not a blank page.

import { h } from "./dom.js";
import { downloadMenu } from "./download.js";

/**
 * `about` says what the figures mean, in a line below the title. Until its content comes, the body says that it loads and
 * keeps its height, so nothing jumps. What it shows can be saved as a file.
 */
export function panel(title, { about = "", name = "", height = 0, extra = null } = {}) {
  const body = h("div", { class: "body", "aria-busy": "true" }, h("div", { class: "skeleton", style: height ? { minHeight: `${height}px` } : {} }, "loading …"));
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const root = h("section", { class: "panel", id: name || null },
    h("header", {}, h("h2", {}, title), extra, downloadMenu(title, body), about ? h("p", { class: "about" }, about) : null),
    problem, body);
  return {
    root,
    show(...content) {
      problem.hidden = true;
      body.removeAttribute("aria-busy");
      body.replaceChildren(...content);
    },
    fail(error) {
      problem.hidden = false;
      problem.textContent = error.message;
      if (body.hasAttribute("aria-busy")) body.replaceChildren(); // nothing loads any more
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
