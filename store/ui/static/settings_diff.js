// Which settings of some runs differ. Pure.

const NAMES_OF_A_RUN = new Set(["run", "id"]); // they always differ

/** Rows `{name, values}` of the settings that are not the same in all runs, from each run's rows `{model, settings}`. */
export function differingSettings(answers) {
  const all = answers.map((rows) => new Map(rows.flatMap((row) =>
    [...flatten(JSON.parse(row.settings || "{}"))].map(([name, value]) => [rows.length > 1 ? `${row.model}: ${name}` : name, value]))));
  const names = [...new Set(all.flatMap((settings) => [...settings.keys()]))].sort();
  return names.map((name) => ({ name, values: all.map((settings) => settings.get(name)) }))
    .filter(({ name, values }) => !NAMES_OF_A_RUN.has(name) && new Set(values).size > 1);
}

/** Settings by their path; a list is one value. */
function flatten(settings, path = "") {
  const flat = new Map();
  for (const [key, value] of Object.entries(settings)) {
    const name = path ? `${path}.${key}` : key;
    const isMap = value && typeof value === "object" && !Array.isArray(value);
    for (const [inner, text] of isMap ? flatten(value, name) : [[name, typeof value === "string" ? value : JSON.stringify(value)]]) flat.set(inner, text);
  }
  return flat;
}
