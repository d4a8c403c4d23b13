// Elements from data. Everything that comes from the store becomes text, never markup: agents are not trusted.

/** An HTML element: `h("a", {href, class}, "text", child)`; functions become listeners, null and false are left out. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else if (name === "style") Object.assign(element.style, value);
    else if (name === "data") Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** A table of named columns: `{title, cell(row), number, class}`. Its rows can be saved as they read. */
export function table(columns, rows, rowAttributes = () => ({})) {
  const texts = (root) => [...root.querySelectorAll("tbody tr")].map((line) => Object.fromEntries(
    [...line.children].map((cell, place) => [columns[place].title, cell.textContent.trim()]).filter(([title]) => title !== "compare")));
  const kind = (column) => [column.number ? "number" : "", column.class ?? ""].join(" ").trim() || null;
  const root = h("div", { class: "scroll", tabindex: "0", data: { rows: "" } }, h("table", {},
    h("thead", {}, h("tr", {}, columns.map((column) => h("th", { class: kind(column), title: column.about, scope: "col" }, column.title)))),
    h("tbody", {}, rows.map((row) => h("tr", rowAttributes(row), columns.map((column) => h("td", { class: kind(column) }, column.cell(row)))))),
  ));
  root.rowsOf = () => texts(root);
  return root;
}

/** A text in its own lines; one that may be long enough to scroll is reached by keyboard. */
export const textBox = (text) => h("div", { class: "text", tabindex: text.length > 400 || text.split("\n").length > 12 ? "0" : null }, text);

/** Text as it is, JSON on lines of its own. */
export function pretty(text) {
  try {
    const value = JSON.parse(text);
    return typeof value === "object" ? JSON.stringify(value, null, 2) : text;
  } catch {
    return text;
  }
}

/** What is said where there is nothing to show; code in it is shown as such. */
export function empty(sentence, code = null) {
  return h("p", { class: "empty" }, sentence, code ? [" ", h("code", {}, code)] : null);
}

const tip = document.getElementById("tip");

/** Shows a tooltip near a point of the window, or hides it where there is nothing to say. */
export function showTip(content, x = 0, y = 0) {
  tip.hidden = content === null;
  if (content === null) return;
  tip.replaceChildren(content);
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - width - 8))}px`;
  tip.style.top = `${y + 18 + height > innerHeight ? Math.max(8, y - height - 12) : y + 18}px`;
}

/** Pairs of a name and a value, for tooltips. */
export function pairs(rows) {
  return h("dl", { class: "pairs" }, rows.map(([name, value, colour]) => [
    h("dt", {}, colour ? h("i", { class: "swatch", style: { background: colour } }) : null, name), h("dd", {}, value),
  ]));
}
