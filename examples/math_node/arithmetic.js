// A calculator that evaluates nothing but arithmetic, and the reward of an answer.

const ARITHMETIC = /^[\d\s.+\-*/()]{1,100}$/;
const LIMIT = 1e12;
const NUMBER = /^(-?\d{1,30}(?:\.\d{1,30})?)(?:\/([1-9]\d{0,29}))?$/;
const TOLERANCE = 1e-5;

/** Value of an expression of numbers, + - * / ** and parentheses; throws with a short reason. */
export function calculate(expression) {
  if (typeof expression !== "string" || !ARITHMETIC.test(expression)) throw new Error("no expression");
  let value;
  try {
    value = Function(`"use strict"; return (${expression})`)(); // these characters can name nothing
  } catch {
    throw new Error("no expression");
  }
  if (typeof value !== "number") throw new Error("no expression");
  if (!(Math.abs(value) <= LIMIT)) throw new Error("too large");
  return String(Number(value.toPrecision(12)));
}

/** 1 if the last `answer: ...` of what was said is the result, else 0; numbers are equal within Calc-X's 1e-5. */
export function score(text, result) {
  const answer = [...text.matchAll(/answer:\s*(\S+)/gi)].at(-1)?.[1].replace(/\.+$/, "");
  if (answer === undefined) return 0;
  const wanted = result.trim();
  if (answer.toLowerCase() === wanted.toLowerCase()) return 1; // also the letter of a choice
  return Number(Math.abs(number(answer) - number(wanted)) <= TOLERANCE); // NaN is never within it
}

/** Only a number, no expression: or a policy is paid for what it left to be calculated. */
function number(text) {
  const match = NUMBER.exec(text.replace(/[,_]/g, ""));
  return match ? Number(match[1]) / Number(match[2] ?? 1) : NaN;
}
