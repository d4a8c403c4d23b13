// Axes: their range, and ticks whose labels fit. Pure.

const TICKS = 3; // at least
const MANY = 40; // steps are not worth a look that give more
const GAP = 6; // between two labels, in pixels
const NICE = [1, 2, 5];
const MARGIN_X = 0.06, MARGIN_Y = 0.08; // of the range, so that marks at the edge are inside the plot
const NOISE = 1e-8; // a smaller difference is drawn flat, as is one of a millionth
const RELATIVE_NOISE = 1e-6;
const FLAT = 0.2; // of the value: the range of what is drawn flat

/** The range of x values: all of them, with a margin; they span at least `span`, whole numbers two. */
export function rangeX(low, high, { whole = false, span = whole ? 2 : 1, origin = null } = {}) {
  if (low === null) return [0, span];
  const from = low === high && low > 0 && origin === null ? Math.max(0, low - span / 2) : low; // one point is in the middle
  const end = Math.max(high, from + span);
  const margin = (end - from) * MARGIN_X;
  return [from - margin, end + margin];
}

/** The range of y values: all of them and `min`, with a margin; `span` is the least, so that noise looks flat. */
export function rangeY(low, high, { min = null, span = NOISE } = {}) {
  if (low === null) return [0, 1];
  const bottom = min === null ? low : Math.min(min, low);
  const size = Math.max(Math.abs(low), Math.abs(high));
  const isFlat = high - bottom < Math.max(span, size * RELATIVE_NOISE);
  const least = size < NOISE && span === NOISE ? FLAT : Math.max(span, size * FLAT); // zeros are drawn as if they were ones
  const missing = isFlat ? least - (high - bottom) : 0;
  const [from, to] = min === null ? [bottom - missing / 2, high + missing / 2] : [bottom, high + missing];
  const margin = (to - from) * MARGIN_Y;
  return [from === min ? from : from - margin, to + margin];
}

/**
 * Ticks from `low` to `high`: as many as fit, at most `most`, and at least three.
 * `fits(step, values)` says whether the labels of these values have room.
 */
export function ticks(low, high, most, fits, steps = decimalSteps(low, high)) {
  let coarsest = [];
  for (const step of steps.filter((fine) => (high - low) / fine < MANY)) {
    const values = multiples(low, high, step);
    if (values.length < TICKS) break;
    coarsest = values;
    if (values.length <= Math.max(TICKS, most) && fits(step, values)) break;
  }
  return coarsest;
}

/** Whether labels as wide as these, in pixels, stand `GAP` apart. */
export const haveRoom = (widths, pixelsPerStep) => Math.max(...widths) + GAP <= pixelsPerStep;

/** Labels of ticks: with all digits where fewer would not tell them apart. */
export function labels(values, format) {
  const texts = values.map(format);
  return new Set(texts).size < texts.length ? values.map(String) : texts;
}

/** Steps of 1, 2 and 5 times powers of ten, from fine to coarse; of whole numbers none below 1. */
export function decimalSteps(low, high, whole = false) {
  const power = Math.floor(Math.log10(high - low)) - 2;
  const steps = Array.from({ length: 4 }, (_, place) => NICE.map((nice) => Number(`${nice}e${power + place}`))).flat();
  return whole ? steps.filter((step) => step >= 1) : steps;
}

function multiples(low, high, step) {
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, place) => Number(((first + place) * step).toPrecision(12)));
}

const UNITS = { seconds: 1000, minutes: 60_000, hours: 3_600_000, days: 86_400_000 };
const LEAST_MS = 10_000; // of an axis
const FEW = 3; // of a unit are shown in the smaller one
const SIXTIES = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300];

/** The axis of a chart over times in milliseconds: how long after the first, in the unit that fits. */
export function timeAxis(times) {
  const [first, last] = [Math.min(...times), Math.max(...times)];
  const [label, unit] = Object.entries(UNITS).filter(([, ms]) => last - first >= FEW * ms).at(-1) ?? ["seconds", UNITS.seconds];
  const steps = label === "days" ? undefined : SIXTIES.map((step) => step * unit);
  return { label, origin: first, span: LEAST_MS, steps, format: (ms) => String(Number(((ms - first) / unit).toPrecision(3))) };
}
