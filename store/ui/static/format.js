// Figures and times as people read them.

const DASH = "–";

/** A whole number with thousands apart. */
export const count = (value) => (value === null || value === undefined ? DASH : Math.round(value).toLocaleString("en-US"));

/** A figure with the digits that tell. */
export function figure(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return DASH;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e7) return value.toExponential(1).replace(".0e", "e");
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  return String(Number(value.toPrecision(3)));
}

/** A reward: always as many digits, so that a column can be compared. */
export const reward = (value) => (value === null || value === undefined ? DASH : value.toFixed(3));

/** A share of one. */
export const share = (value) => (value === null || value === undefined ? DASH : `${(100 * value).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %`);

/** Seconds, in the unit that fits. */
export function seconds(value) {
  if (value === null || value === undefined) return DASH;
  if (value < 1e-3) return value <= 0 ? "0 s" : `${Math.round(value * 1e6)} µs`;
  if (value < 1) return `${figure(value * 1e3)} ms`;
  if (value < 120) return `${figure(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  return value < 172800 ? `${rounded(value / 3600)} h` : `${rounded(value / 86400)} d`;
}

const rounded = (value) => (value < 10 ? value.toFixed(1) : Math.round(value));

/** How long ago, from milliseconds since 1970. */
export function ago(ms) {
  if (!ms) return DASH;
  const past = (Date.now() - ms) / 1000;
  return past < 0 ? clock(ms) : past < 5 ? "now" : `${seconds(past < 10 ? Math.round(past) : past)} ago`;
}

/** A time of this machine's zone, with its date where it is not today. */
export function clock(ms, precise = false) {
  if (!ms) return DASH;
  const date = new Date(ms);
  const time = date.toLocaleTimeString("en-GB") + (precise ? `.${String(Math.floor(ms) % 1000).padStart(3, "0")}` : "");
  return date.toDateString() === new Date().toDateString() ? time : `${date.toLocaleDateString("sv-SE")} ${time}`;
}

/** Versions from one to another. */
export function versions(low, high) {
  if (low === null || low === undefined) return DASH;
  return low === high ? String(low) : `${low}–${high}`;
}

/** A number of bytes. */
export function size(bytes) {
  const power = Math.min(Math.floor(Math.log2(Math.max(bytes, 1)) / 10), 4);
  return `${power ? figure(bytes / 2 ** (10 * power)) : bytes} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}
