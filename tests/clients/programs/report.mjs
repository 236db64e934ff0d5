// What every program in JavaScript shares; the same as report.py.

export const [URL, MODEL] = process.argv.slice(2);
export const BASE_URL = `${URL}/v1`;
export const API_KEY = "none";
export const QUESTION = "What is 17 + 25?";
export const ANSWER = "17 + 25 = 42.";
export const SECOND_QUESTION = "Count from 1 to 9.";
export const SECOND_ANSWER = "1, 2, 3, 4, 5, 6, 7, 8, 9.";
export const PROMPT =
  `<|im_start|>user\n${QUESTION}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n`;

const tasks = [];

export const task = (name, run) => tasks.push([name, run]);

export function check(holds, reason) {
  if (!holds) throw new Error(reason);
}

export function equal(found, wanted, what) {
  const [left, right] = [JSON.stringify(found), JSON.stringify(wanted)];
  check(left === right, `${what} is ${left}, not ${right}`);
}

export function checkLogprobs(values, numTokens) {
  equal(values.length, numTokens, "the number of logprobs");
  const wrong = values.filter((value) => !(Number.isFinite(value) && value <= 0));
  check(values.length > 0 && wrong.length === 0, `logprobs ${wrong} are not finite and at most 0`);
}

export function checkUsage(prompt, completion, total) {
  check(prompt > 0 && completion > 0 && total === prompt + completion, `usage ${prompt} + ${completion} is ${total}`);
}

function reasonOf(error) {
  let text = `${error}`;
  for (let cause = error; cause; cause = cause.cause ?? cause.lastError) {
    const body = cause.responseBody ?? (cause.error && JSON.stringify(cause.error));
    if (body) {
      text += ` [server: ${cause.statusCode ?? cause.status} ${body}]`;
      break;
    }
  }
  return text.replace(/\s+/g, " ");
}

const print = (line) => console.log(`\n${JSON.stringify(line)}`);

export async function main() {
  for (const [name, run] of tasks) {
    print({ began: name });
    try {
      await run();
      print({ task: name, passed: true, reason: "" });
    } catch (error) {
      print({ task: name, passed: false, reason: reasonOf(error) });
    }
  }
  print({ ended: tasks.length });
}
