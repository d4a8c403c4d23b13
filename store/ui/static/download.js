// What a panel shows, as a file: its rows as CSV or JSON, its picture as PNG.

import { h } from "./dom.js";

const PAD = 12, LINE = 20; // pixels of a picture
const FONT = '13px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif';
const WIDEST = 320; // of a column of text

/** Marks an element as one that has rows `[{name: value}]`, which `rowsOf` returns when they are wanted. */
export function withRows(element, rowsOf) {
  element.dataset.rows = "";
  element.rowsOf = rowsOf;
  return element;
}

/** A menu that saves what a panel shows; hidden by the style sheet while the panel has no rows. */
export function downloadMenu(title, body) {
  const name = () => `${document.title.split(" · ")[0]} ${title}`.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "");
  const rows = () => [...body.querySelectorAll("[data-rows]")].filter((item) => item.rowsOf).flatMap((item) => item.rowsOf());
  const button = (kind, make) => h("button", { type: "button", click: async () => { save(`${name()}.${kind}`, await make()); root.open = false; } }, kind.toUpperCase());
  const root = h("details", {
    class: "download",
    keydown: (event) => { if (event.key === "Escape") root.open = false; },
    focusout: (event) => { if (!root.contains(event.relatedTarget)) root.open = false; },
  }, h("summary", { title: "Save as a file", "aria-label": `Save ${title} as a file` }, "↓"),
  h("div", { class: "choices" },
    button("csv", () => new Blob([toCsv(rows())], { type: "text/csv" })),
    button("json", () => new Blob([`${JSON.stringify(rows(), null, 2)}\n`], { type: "application/json" })),
    button("png", () => picture(title, body, rows()))));
  return root;
}

/** Rows as CSV (RFC 4180); a text that a table program would take for a formula begins with an apostrophe. */
export function toCsv(rows) {
  const columns = [...new Set(rows.flatMap(Object.keys))];
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return [columns, ...rows.map((row) => columns.map((name) => row[name]))].map((line) => `${line.map(cell).join(",")}\r\n`).join("");
}

function save(name, blob) {
  const url = URL.createObjectURL(blob);
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000); // the browser reads it after the click
}

/** A picture of a panel: its charts as they are drawn, else its rows as a table. */
function picture(title, body, rows) {
  const style = getComputedStyle(document.body);
  const colours = { text: style.color, ground: getComputedStyle(body.parentElement).backgroundColor };
  const plots = [...body.querySelectorAll(".chart canvas")];
  const canvas = plots.length ? chartPicture(title, plots, colours) : tablePicture(title, rows, colours);
  return new Promise((done) => { canvas.toBlob(done, "image/png"); });
}

function blank(width, height, { text, ground }) {
  const canvas = h("canvas", { width: Math.ceil(width), height: Math.ceil(height) });
  const ctx = canvas.getContext("2d");
  Object.assign(ctx, { fillStyle: ground, font: FONT, textBaseline: "middle" });
  ctx.fillRect(0, 0, canvas.width, canvas.height);
  ctx.fillStyle = text;
  return { canvas, ctx };
}

function chartPicture(title, plots, colours) {
  const scale = devicePixelRatio;
  const width = Math.max(...plots.map((plot) => plot.width)) + 2 * PAD * scale;
  const heights = plots.map((plot) => plot.height + LINE * scale);
  const { canvas, ctx } = blank(width, heights.reduce((sum, height) => sum + height, (LINE + 2 * PAD) * scale), colours);
  ctx.font = FONT.replace("13px", `${13 * scale}px`);
  ctx.fillText(title, PAD * scale, PAD * scale + 8 * scale);
  let top = (PAD + LINE) * scale;
  plots.forEach((plot, place) => {
    let left = PAD * scale;
    for (const { name, colour } of plot.closest(".chart").series) {
      ctx.fillStyle = colour;
      ctx.fillRect(left, top + 4 * scale, 10 * scale, 10 * scale);
      ctx.fillStyle = colours.text;
      ctx.fillText(name, left + 15 * scale, top + 9 * scale);
      left += 30 * scale + ctx.measureText(name).width;
    }
    ctx.drawImage(plot, PAD * scale, top + LINE * scale);
    top += heights[place];
  });
  return canvas;
}

function tablePicture(title, rows, colours) {
  const columns = [...new Set(rows.flatMap(Object.keys))];
  const lines = [columns, ...rows.map((row) => columns.map((name) => String(row[name] ?? "")))];
  const { ctx: ruler } = blank(1, 1, colours);
  const widths = columns.map((_, place) => Math.min(WIDEST, Math.max(...lines.map((line) => ruler.measureText(line[place]).width))) + 2 * PAD);
  const all = widths.reduce((sum, width) => sum + width, 2 * PAD);
  const { canvas, ctx } = blank(Math.max(all, ruler.measureText(title).width + 2 * PAD), (lines.length + 2) * LINE + PAD, colours);
  ctx.fillText(title, PAD, LINE);
  lines.forEach((line, row) => {
    let left = PAD;
    ctx.globalAlpha = row ? 1 : 0.7;
    line.forEach((text, place) => { ctx.fillText(text, left, (row + 2) * LINE + 4, widths[place] - PAD); left += widths[place]; });
  });
  return canvas;
}
