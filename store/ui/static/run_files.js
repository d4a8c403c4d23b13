// The logs and checkpoints of a run, where its directory is on the machine of the page. Logs are read; checkpoints are listed.

import { ask } from "./api.js";
import { empty, h, table } from "./dom.js";
import { ago, clock, size } from "./format.js";
import { fill, panel } from "./panel.js";

/** The panel; `load` asks for the files again. */
export function filesPanel(run, signal) {
  const box = panel("Logs and checkpoints", { name: "files", about: "Files in the run's directory, the newest first.", height: 120 });
  return { root: box.root, load: () => fill(box, async () => list(run, await ask("run/files", { run_id: run }, signal)), signal) };
}

const isLog = (file) => file.path.startsWith("logs/");

function list(run, { directory, files, num_left_out: more }) {
  if (!directory) return empty("The run's directory is not on the machine of this page, or the page can be reached from others. Its logs and checkpoints lie in", `runs/${run}`);
  const address = (file) => `/api/run/file?${new URLSearchParams({ run_id: run, path: file.path })}`;
  return h("div", {},
    h("p", { class: "about" }, "In ", h("code", { style: { overflowWrap: "anywhere" } }, directory), more ? `, and ${more} older files` : ""),
    files.length ? table([
      { title: "file", cell: (file) => (isLog(file) ? h("a", { href: address(file), target: "_blank", rel: "noopener" }, file.path) : file.path) },
      { title: "size", number: true, cell: (file) => size(file.bytes) },
      { title: "changed", number: true, cell: (file) => h("span", { title: clock(file.changed_ms) }, ago(file.changed_ms)) },
    ], files) : empty("There is no log and no checkpoint yet."));
}
