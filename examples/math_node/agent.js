// A math agent with one tool, a calculator, on the stock OpenAI client: `node agent.js` reads a problem
// {"question": ..., "result": ...} as JSON on standard input and prints {"reward": 0 or 1, "answer": ...} as JSON.
// Where the model is, and the key for it, come from the environment, as always with this client.

import OpenAI from "openai";
import { json } from "node:stream/consumers";
import { calculate, score } from "./arithmetic.js";

const SYSTEM = "Use the calculator, one step at a time. Then say answer: NUMBER";
const ROUNDS = 4; // most model calls of one problem
const CALCULATOR = {
  type: "function",
  function: {
    name: "calculator",
    description: "Evaluates arithmetic.",
    parameters: {
      type: "object",
      properties: { expression: { type: "string" } },
      required: ["expression"],
    },
  },
};

const client = new OpenAI();

async function ask(messages) {
  const answer = await client.chat.completions.create({
    model: process.env.MODEL ?? "policy",
    messages,
    tools: [CALCULATOR],
    max_tokens: 48,
  });
  return answer.choices[0].message;
}

function runTool(call) {
  try {
    if (call.function?.name !== "calculator") throw new Error("no such tool");
    return calculate(JSON.parse(call.function.arguments).expression);
  } catch (error) {
    return `error: ${error.message}`;
  }
}

async function solve(task) {
  const messages = [
    { role: "system", content: SYSTEM },
    { role: "user", content: task.question },
  ];
  for (let round = 0; round < ROUNDS; round++) {
    const reply = await ask(messages);
    if (!reply.tool_calls?.length) return reply.content ?? "";
    messages.push(reply);
    for (const call of reply.tool_calls) {
      messages.push({ role: "tool", tool_call_id: call.id, content: runTool(call) });
    }
  }
  return "";
}

const task = await json(process.stdin);
const answer = await solve(task);
console.log(JSON.stringify({ reward: score(answer, task.result), answer }));
