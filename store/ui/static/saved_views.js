// Views of the list of rollouts that a reader has named: filters and order, kept in this browser.

import { h } from "./dom.js";
import { place } from "./place.js";

const KEY = "lightningbus-views";

function stored() {
  try {
    const views = JSON.parse(localStorage.getItem(KEY) ?? "{}");
    return views && typeof views === "object" ? views : {};
  } catch {
    return {};
  }
}

/** A menu of named views; `go(query)` opens one, a text as it stands in the address. Each name is a link to share. */
export function viewsMenu(go) {
  const list = h("ul", {});
  const name = h("input", { name: "view", placeholder: "name of this view", "aria-label": "Name of this view", autocomplete: "off", maxlength: 60 });
  const form = h("form", { class: "view-form", submit: (event) => { event.preventDefault(); if (name.value.trim()) keep({ ...stored(), [name.value.trim()]: String(place().query) }); name.value = ""; } },
    name, h("button", { type: "submit" }, "Save"));
  const root = h("details", { class: "views", keydown: (event) => { if (event.key === "Escape") root.open = false; }, toggle: () => draw() },
    h("summary", {}, "Views"), h("div", { class: "choices" }, list, form));

  function keep(views) {
    try { localStorage.setItem(KEY, JSON.stringify(views)); } catch { /* the address keeps it */ }
    draw();
  }

  function draw() {
    const views = Object.entries(stored()).sort(([a], [b]) => a.localeCompare(b));
    const { path } = place();
    list.replaceChildren(...views.map(([title, query]) => h("li", {},
      h("a", { href: `#${path}${query ? `?${query}` : ""}`, click: (event) => { event.preventDefault(); root.open = false; go(query); } }, title),
      h("button", { type: "button", "aria-label": `Forget ${title}`, click: () => keep(Object.fromEntries(views.filter(([other]) => other !== title))) }, "×"))));
  }

  return root;
}
