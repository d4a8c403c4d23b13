// Read the rollouts of a run from Node.js: node read.js RUN
import { createClient } from "@clickhouse/client";

const client = createClient({ url: process.env.CLICKHOUSE_URL ?? "http://127.0.0.1:8123", database: "lightningbus" });
const query = `
  SELECT task_id, input, outcome, reward FROM tasks LEFT JOIN rollouts USING (run_id, rollout_id, task_id)
  WHERE run_id = {run_id:String} ORDER BY task_id`;
const rows = await client.query({ query, query_params: { run_id: process.argv[2] }, format: "JSONEachRow" });
for (const row of await rows.json()) console.log(JSON.stringify(row));
await client.close();
