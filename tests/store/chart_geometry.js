// What is wrong with the charts and bars of the page that is open: ticks, labels, and what is drawn outside its place.
async () => {
  while ([...document.querySelectorAll(".chart")].some((chart) => !chart.plot)) await new Promise(requestAnimationFrame);
  const ruler = document.createElement("canvas").getContext("2d");
  const round = 0.5; // pixels

  function chartFaults(root) {
    const { plot } = root, faults = [];
    const [left, width, height] = [plot.bbox.left, plot.bbox.width, plot.bbox.height].map((pixels) => pixels / devicePixelRatio);
    ruler.font = plot.axes[0].font[0].replace(/^\S+px/, "11px");
    const [x, y] = plot.axes.map(({ _splits, _values, scale }) => _splits.map((value, place) => ({
      at: plot.valToPos(value, scale), text: String(_values[place]), width: ruler.measureText(_values[place]).width,
    })));
    const isIn = (at, size) => at >= -round && at <= size + round;
    for (const [name, ticks, size] of [["x", x, width], ["y", y, height]]) {
      if (ticks.length < 3) faults.push(`${ticks.length} ticks on ${name}`);
      if (new Set(ticks.map((tick) => tick.text)).size < ticks.length) faults.push(`ticks on ${name} read the same`);
      for (const tick of ticks.filter((tick) => !isIn(tick.at, size))) faults.push(`tick ${tick.text} is outside`);
    }
    x.forEach((tick, place) => {
      const start = left + tick.at - tick.width / 2;
      if (start < 0 || start + tick.width > plot.width) faults.push(`label ${tick.text} is cut`);
      if (place && x[place - 1].at + x[place - 1].width / 2 > tick.at - tick.width / 2) faults.push(`label ${tick.text} is over another`);
    });
    y.forEach((tick, place) => {
      if (tick.width + plot.axes[1].gap > left) faults.push(`label ${tick.text} is cut`);
      if (place && Math.abs(y[place - 1].at - tick.at) < 11) faults.push(`label ${tick.text} is over another`);
    });
    for (const values of plot.data.slice(1)) {
      values.forEach((value, place) => {
        if (value === null) return;
        if (!isIn(plot.valToPos(plot.data[0][place], "x"), width) || !isIn(plot.valToPos(value, "y"), height)) faults.push(`${value} is outside`);
      });
    }
    const card = root.closest(".panel").getBoundingClientRect(), area = root.getBoundingClientRect();
    if (area.left < card.left || area.right > card.right || plot.width > area.width + 1 || card.right > innerWidth) faults.push("wider than its panel");
    if (width < 40) faults.push(`${width} pixels wide`);
    return faults.map((fault) => `${root.getAttribute("aria-label")}: ${fault}`);
  }

  function barFaults(bars) {
    const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
    return bars.flatMap(({ bar, track }, place) => [
      ...bars.slice(place + 1).filter((other) => meet(bar, other.bar)).map(() => `bar ${place} is over another`),
      ...(bar.right > track.right + round || bar.height < 4 || track.right > innerWidth ? [`bar ${place} is outside`] : []),
    ]);
  }

  const bars = [...document.querySelectorAll(".bars i")].map((bar) => ({ bar: bar.getBoundingClientRect(), track: bar.parentElement.getBoundingClientRect() }));
  return { faults: [...[...document.querySelectorAll(".chart")].flatMap(chartFaults), ...barFaults(bars)], numBars: bars.length };
}
