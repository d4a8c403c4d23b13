// A chart for each named reward: what a function of rewards, a grader, a judge or an environment gave.

import { h } from "./dom.js";
import { fill, panel } from "./panel.js";
import { rewardChart, rewardSeries } from "./run_charts.js";

const HEIGHT = 164;

/** The panel, hidden while there is no named reward; `load(rows, places)` fills it. `seriesOf(rows, place)`: those of one name. */
export function namedRewards(signal, seriesOf = (rows, place) => rewardSeries(rows, { place })) {
  const grid = h("div", { class: "grid" });
  const box = panel("Rewards by name", { name: "named-rewards", about: "Mean of each named reward over the rollouts that have it, by weight version, with its standard error." });
  box.root.hidden = true;
  let charts = new Map();

  function draw(rows, places) {
    const names = [...new Set(rows.map((row) => row.name))];
    charts = new Map(names.map((name) => [name, charts.get(name) ?? chartBox(name)]));
    box.root.hidden = !names.length;
    if (names.length !== grid.children.length || names.some((name, place) => grid.children[place] !== charts.get(name).root)) grid.replaceChildren(...[...charts.values()].map((item) => item.root));
    for (const [name, item] of charts) {
      item.show(rewardChart(seriesOf(rows.filter((row) => row.name === name), places.version.at), places.version.axis(), HEIGHT, name));
    }
    return grid;
  }

  return { root: box.root, load: (rows, places) => fill(box, async () => draw(await rows, places), signal) };
}

function chartBox(name) {
  const box = panel(name, { height: HEIGHT });
  box.root.classList.add("third", "metric");
  box.root.dataset.reward = name;
  return box;
}
