// An agent as a program, with one tool, a calculator: it reads a task as JSON on standard input and prints its reward.
// OPENAI_BASE_URL and OPENAI_API_KEY come from the runner. Every call is recorded, token by token.

import OpenAI from "openai";
import { json } from "node:stream/consumers";

const SYSTEM = "Use the calculator. Then say only the number.";
const CALCULATE = {
  type: "function",
  function: {
    name: "calculate",
    description: "Calculate a sum (+), a difference (-) or a product (*).",
    parameters: {
      type: "object",
      properties: { left: { type: "integer" }, sign: { type: "string" }, right: { type: "integer" } },
      required: ["left", "sign", "right"],
    },
  },
};
const client = new OpenAI();

function calculate(text) {
  try {
    const { left, sign, right } = JSON.parse(text);
    return String({ "+": left + right, "-": left - right, "*": left * right }[sign] ?? "unknown sign");
  } catch (error) {
    return `error: ${error.message}`;
  }
}

// Answers one task, the `input` of its line in tasks.jsonl. Returns its reward: 1 for the right result, else 0.
async function solve(task) {
  const messages = [{ role: "system", content: SYSTEM }, { role: "user", content: task.question }];
  for (let turn = 0; turn < 4; turn++) {
    const model = process.env.MODEL ?? "policy";
    const reply = await client.chat.completions.create({ model, messages, tools: [CALCULATE], max_tokens: 512 });
    const message = reply.choices[0].message;
    if (!message.tool_calls?.length) {
      const numbers = (message.content ?? "").match(/-?\d+/g) ?? [];
      return numbers.at(-1) === task.answer ? 1 : 0;
    }
    messages.push(message);
    for (const call of message.tool_calls) {
      messages.push({ role: "tool", tool_call_id: call.id, content: calculate(call.function.arguments) });
    }
  }
  return 0;
}

console.log(JSON.stringify({ reward: await solve(await json(process.stdin)) }));
