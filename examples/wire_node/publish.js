// Publish tasks from Node.js: node publish.js AGENT RUN < tasks.jsonl
import { createInterface } from "node:readline";
import { encode } from "@msgpack/msgpack";
import { jetstream } from "@nats-io/jetstream";
import { connect, headers } from "@nats-io/transport-node";

const [agent, run] = process.argv.slice(2);
const nats = await connect({ servers: process.env.NATS_URL ?? "nats://127.0.0.1:4222" });
const js = jetstream(nats);
for await (const line of createInterface({ input: process.stdin })) {
  const { id, input } = JSON.parse(line);
  const event = headers();
  event.set("Lightningbus-Schema", "Task/2");
  const task = { id, run_id: run, agent, input, mode: "eval" };
  const ack = await js.publish(`lb.task.${task.mode}.${agent}`, encode(task), { msgID: `task:${id}.0`, headers: event });
  console.log(ack.duplicate ? `${id} was there already` : `${id} is message ${ack.seq} of ${ack.stream}`);
}
await nats.close();
