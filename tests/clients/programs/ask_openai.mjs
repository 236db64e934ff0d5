// OpenAI's client for Node: chat, completions, tools, and what it sends at a field's default.

import OpenAI from "openai";
import {
  ANSWER, API_KEY, BASE_URL, MODEL, PROMPT, QUESTION, SECOND_ANSWER, SECOND_QUESTION,
  check, checkLogprobs, checkUsage, equal, main, task,
} from "./report.mjs";
import { FORM_QUESTION, REPORT_TOOL, RESPONSE_FORMAT, checkReport } from "./forms.mjs";
import { DESCRIPTION, NAME, PARAMETERS, SECOND_THOUGHT, THINKING, TOOL, roundTrip } from "./weather.mjs";

const client = new OpenAI({ baseURL: BASE_URL, apiKey: API_KEY, maxRetries: 0, timeout: 60_000 });
const messages = [{ role: "user", content: QUESTION }];

const chat = (fields = {}) => client.chat.completions.create({ model: MODEL, messages, temperature: 0, ...fields });
const complete = (fields = {}) =>
  client.completions.create({ model: MODEL, prompt: PROMPT, temperature: 0, max_tokens: 40, ...fields });

async function all(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

const textOf = (chunks) => chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");

function checkAnswer(answer, wanted = ANSWER) {
  const { message, finish_reason } = answer.choices[0];
  equal([answer.object, message.role, message.content, finish_reason],
    ["chat.completion", "assistant", wanted, "stop"], "the answer");
  checkUsage(answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens);
}

task("models", async () => {
  equal((await all(client.models.list())).map((model) => model.id), [MODEL], "the models");
  check(Number.isInteger((await client.models.retrieve(MODEL)).created), "the model has no created");
});

task("plain chat", async () => checkAnswer(await chat()));

task("chat stream", async () => {
  const chunks = await all(await chat({ stream: true, stream_options: { include_usage: true } }));
  equal(textOf(chunks), ANSWER, "the text");
  const last = chunks.pop();
  equal(chunks.at(-1).choices[0].finish_reason, "stop", "finish_reason");
  checkUsage(last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens);
});

task("chat stream without obfuscation", async () => {
  const chunks = await all(await chat({ stream: true, stream_options: { include_obfuscation: false } }));
  equal(textOf(chunks), ANSWER, "the text");
});

task("chat stream helper", async () => {
  const stream = client.chat.completions.stream({ model: MODEL, messages, temperature: 0 });
  let text = "";
  stream.on("content", (delta) => (text += delta));
  equal((await stream.finalChatCompletion()).choices[0].message.content, ANSWER, "the final text");
  equal(text, ANSWER, "the deltas");
});

task("chat logprobs", async () => {
  const answer = await chat({ logprobs: true, top_logprobs: 2 });
  const entries = answer.choices[0].logprobs.content;
  checkLogprobs(entries.map((entry) => entry.logprob), answer.usage.completion_tokens);
  for (const entry of entries) equal(entry.top_logprobs[0].token, entry.token, "the greedy token");
});

task("chat stream logprobs", async () => {
  const whole = (await chat({ logprobs: true, top_logprobs: 2 })).choices[0].logprobs.content;
  const chunks = await all(await chat({ logprobs: true, top_logprobs: 2, stream: true }));
  equal(chunks.flatMap((chunk) => chunk.choices[0].logprobs?.content ?? []), whole, "the streamed logprobs");
});

task("second turn", async () => {
  const { message } = (await chat()).choices[0];
  checkAnswer(await chat({ messages: [...messages, message, { role: "user", content: SECOND_QUESTION }] }),
    SECOND_ANSWER);
});

task("plain completion", async () => {
  const answer = await complete();
  equal([answer.object, answer.choices[0].text, answer.choices[0].finish_reason],
    ["text_completion", ANSWER, "stop"], "the answer");
  checkUsage(answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens);
});

task("completion stream", async () => {
  const chunks = await all(await complete({ stream: true }));
  equal(chunks.map((chunk) => chunk.choices[0].text).join(""), ANSWER, "the text");
});

task("completion logprobs", async () => {
  const answer = await complete({ logprobs: 2 });
  checkLogprobs(answer.choices[0].logprobs.token_logprobs, answer.usage.completion_tokens);
});

task("fields at their defaults", async () => {
  const fields = {
    audio: null, frequency_penalty: 0, logit_bias: {}, logprobs: false, metadata: {}, modalities: ["text"], n: 1,
    parallel_tool_calls: true, presence_penalty: 0, response_format: { type: "text" }, service_tier: "auto",
    stop: null, store: false, stream: false, tools: [], top_p: 1, user: "someone",
  };
  checkAnswer(await chat(fields));
});

task("completion fields at their defaults", async () => {
  const fields = {
    best_of: 1, echo: false, frequency_penalty: 0, logit_bias: {}, logprobs: null, n: 1, presence_penalty: 0,
    stop: null, stream: false, suffix: null, top_p: 1, user: "someone",
  };
  equal((await complete(fields)).choices[0].text, ANSWER, "the text");
});

task("unknown model", async () => {
  const error = await chat({ model: "other" }).catch((error) => error);
  check(error instanceof OpenAI.NotFoundError, `no NotFoundError: ${error}`);
  equal([error.code, error.param], ["model_not_found", "model"], "code and param");
});

const withFetch = (fetch) => new OpenAI({ baseURL: BASE_URL, apiKey: API_KEY, maxRetries: 0, timeout: 60_000, fetch });

// Asks for the call, sends its result, and checks what the client shows of both answers. `ask` returns a choice.
async function checkRoundTrip(asked, thinking, ask) {
  const question = { role: "user", content: asked.question };
  const first = await ask([question]);
  const [call] = first.message.tool_calls;
  equal([first.finish_reason, first.message.content || null, call.type], ["tool_calls", null, "function"], "the call");
  asked.checkCall(call.function.name, call.function.arguments);
  const content = asked.getWeather(JSON.parse(call.function.arguments));
  const last = await ask([question, first.message, { role: "tool", tool_call_id: call.id, content }]);
  equal([last.finish_reason, last.message.content.trim()], ["stop", asked.sentence], "the answer");
  const thoughts = [first, last].map(({ message }) => (message.reasoning ?? "").trim());
  equal(thoughts, thinking ? [asked.thought, SECOND_THOUGHT] : ["", ""], "the reasoning");
}

for (const thinking of [false, true]) {
  const fields = { model: MODEL, temperature: 0, tools: [TOOL], ...(thinking ? THINKING : {}) };
  const name = `tool round trip${thinking ? " with reasoning" : ""}`;

  task(name, async () =>
    roundTrip({ stream: false, thinking }, (asked, fetch) =>
      checkRoundTrip(asked, thinking, async (messages) =>
        (await withFetch(fetch).chat.completions.create({ ...fields, messages })).choices[0])));

  task(`${name} streamed`, async () =>
    roundTrip({ stream: true, thinking }, (asked, fetch) =>
      checkRoundTrip(asked, thinking, async (messages) => {
        const stream = withFetch(fetch).chat.completions.stream({ ...fields, messages });
        let reasoning = "";
        stream.on("chunk", (chunk) => (reasoning += chunk.choices[0]?.delta.reasoning ?? ""));
        const { message, finish_reason } = (await stream.finalChatCompletion()).choices[0];
        return { finish_reason, message: { ...message, reasoning } };
      })));
}

for (const stream of [false, true]) {
  task(`tool runner${stream ? " streamed" : ""}`, async () =>
    roundTrip({ stream }, async (asked, fetch) => {
      const run = {
        name: NAME, description: DESCRIPTION, parameters: PARAMETERS, parse: JSON.parse,
        function: (input) => asked.getWeather(input),
      };
      const tools = [{ type: "function", function: run }];
      const messages = [{ role: "user", content: asked.question }];
      const runner = withFetch(fetch).chat.completions.runTools({ model: MODEL, temperature: 0, stream, messages, tools });
      const called = [];
      runner.on("functionToolCall", (call) => called.push([call.name, call.arguments]));
      equal(await runner.finalContent(), asked.sentence, "the final text");
      equal(called.length, 1, "the number of calls");
      asked.checkCall(...called[0]);
    }));
}

const asked = { model: MODEL, temperature: 0, max_tokens: 600, messages: [{ role: "user", content: FORM_QUESTION }] };

task("parse helper", async () => {
  const { message, finish_reason } = (
    await client.chat.completions.parse({ ...asked, response_format: RESPONSE_FORMAT })
  ).choices[0];
  checkReport(message.parsed);
  equal(finish_reason, "stop", "finish_reason");
});

task("parse helper of the stream", async () => {
  const stream = client.chat.completions.stream({ ...asked, response_format: RESPONSE_FORMAT });
  checkReport((await stream.finalChatCompletion()).choices[0].message.parsed);
});

task("calls that must come", async () => {
  for (const [tool_choice, reason] of [
    ["required", "tool_calls"],
    [{ type: "function", function: { name: "report" } }, "stop"],
  ]) {
    const { message, finish_reason } = (
      await chat({ ...asked, tools: [REPORT_TOOL], tool_choice, parallel_tool_calls: false })
    ).choices[0];
    equal([message.tool_calls.length, finish_reason], [1, reason], "the answer");
    checkReport(JSON.parse(message.tool_calls[0].function.arguments));
  }
});

await main();
