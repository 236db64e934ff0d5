// Vercel's `ai` with @ai-sdk/openai-compatible. It reads no logprobs; the task for them reads the body that it keeps.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, generateObject, generateText, isStepCount, jsonSchema, streamObject, streamText, tool } from "ai";
import { FORM_QUESTION, SCHEMA, checkReport } from "./forms.mjs";
import {
  ANSWER, API_KEY, BASE_URL, MODEL, PROMPT, QUESTION, SECOND_ANSWER, SECOND_QUESTION,
  check, checkLogprobs, checkUsage, equal, main, task,
} from "./report.mjs";
import { DESCRIPTION, NAME, PARAMETERS, SECOND_THOUGHT, THINKING, roundTrip } from "./weather.mjs";

const provider = createOpenAICompatible({ name: "tandem", baseURL: BASE_URL, apiKey: API_KEY, includeUsage: true });
const common = { model: provider(MODEL), temperature: 0, maxRetries: 0 };
const completions = { model: provider.completionModel(MODEL), temperature: 0, maxOutputTokens: 40, maxRetries: 0 };

function checkResult({ text, finishReason, usage }, wanted = ANSWER) {
  equal([text, finishReason], [wanted, "stop"], "the answer");
  checkUsage(usage.inputTokens, usage.outputTokens, usage.totalTokens);
}

async function checkStream(settings) {
  const errors = [];
  const result = streamText({ ...settings, onError: ({ error }) => errors.push(error) });
  let text = "";
  for await (const delta of result.textStream) text += delta;
  if (errors.length > 0) throw errors[0];
  equal([text, await result.finishReason], [ANSWER, "stop"], "the answer");
  const usage = await result.usage;
  checkUsage(usage.inputTokens, usage.outputTokens, usage.totalTokens);
}

task("plain chat", async () => checkResult(await generateText({ ...common, prompt: QUESTION })));

task("chat stream", async () => checkStream({ ...common, prompt: QUESTION }));

task("chat logprobs", async () => {
  const providerOptions = { tandem: { logprobs: true, top_logprobs: 2 } };
  const settings = { providerOptions, include: { responseBody: true } };
  const { response, usage } = await generateText({ ...common, ...settings, prompt: QUESTION });
  checkLogprobs(response.body.choices[0].logprobs.content.map((entry) => entry.logprob), usage.outputTokens);
});

task("second turn", async () => {
  const asked = [{ role: "user", content: QUESTION }];
  const { response } = await generateText({ ...common, messages: asked });
  const messages = [...asked, ...response.messages, { role: "user", content: SECOND_QUESTION }];
  checkResult(await generateText({ ...common, messages }), SECOND_ANSWER);
});

task("instructions", async () =>
  checkResult(await generateText({ ...common, instructions: "Be brief.", prompt: QUESTION })));

task("settings that change nothing", async () => {
  const providerOptions = { tandem: { user: "someone", textVerbosity: "medium", reasoningEffort: "none" } };
  const settings = { topP: 1, frequencyPenalty: 0, presencePenalty: 0, tools: {}, providerOptions };
  checkResult(await generateText({ ...common, ...settings, prompt: QUESTION }));
});

task("plain completion", async () => {
  const { text, usage } = await generateText({ ...completions, prompt: QUESTION });
  check(text.length > 0, "no text");
  checkUsage(usage.inputTokens, usage.outputTokens, usage.totalTokens);
});

task("completion stream", async () => {
  const { text } = await generateText({ ...completions, prompt: QUESTION });
  const streamed = streamText({ ...completions, prompt: QUESTION });
  equal(await streamed.text, text, "the text");
});

task("completion settings that change nothing", async () => {
  const providerOptions = { tandem: { echo: false, user: "someone" } };
  const { text } = await generateText({ ...completions, prompt: QUESTION });
  equal((await generateText({ ...completions, prompt: QUESTION, providerOptions })).text, text, "the text");
});

function toolSettings(asked, fetch, thinking) {
  const settings = { name: "tandem", baseURL: BASE_URL, apiKey: API_KEY, includeUsage: true, fetch };
  const getWeather = tool({
    description: DESCRIPTION, inputSchema: jsonSchema(PARAMETERS), execute: async (input) => asked.getWeather(input),
  });
  const providerOptions = thinking ? { tandem: THINKING } : {};
  const model = createOpenAICompatible(settings)(MODEL);
  return {
    model, providerOptions, temperature: 0, maxRetries: 0, prompt: asked.question,
    tools: { [NAME]: getWeather }, stopWhen: isStepCount(3),
  };
}

function checkSteps(steps, asked, thinking) {
  equal(steps.map((step) => step.finishReason), ["tool-calls", "stop"], "the finish reasons");
  const [{ toolCalls: [call], toolResults: [result] }] = steps;
  asked.checkCall(call.toolName, call.input);
  equal([result.toolCallId, result.output], [call.toolCallId, asked.result], "the result");
  equal(steps[1].text.trim(), asked.sentence, "the final text");
  const thoughts = steps.map((step) => (step.reasoningText ?? "").trim());
  equal(thoughts, thinking ? [asked.thought, SECOND_THOUGHT] : ["", ""], "the reasoning");
}

for (const thinking of [false, true]) {
  const name = `tool round trip${thinking ? " with reasoning" : ""}`;

  task(name, async () =>
    roundTrip({ stream: false, thinking }, async (asked, fetch) =>
      checkSteps((await generateText(toolSettings(asked, fetch, thinking))).steps, asked, thinking)));

  task(`${name} streamed`, async () =>
    roundTrip({ stream: true, thinking }, async (asked, fetch) => {
      const result = streamText({ ...toolSettings(asked, fetch, thinking), onError: () => {} });
      let [text, input] = ["", ""];
      for await (const part of result.fullStream) {
        if (part.type === "error") throw part.error;
        if (part.type === "text-delta") text += part.text;
        if (part.type === "tool-input-delta") input += part.delta;
      }
      equal(text.trim(), asked.sentence, "the deltas of the text");
      asked.checkCall(NAME, input);
      checkSteps(await result.steps, asked, thinking);
    }));
}

const former = createOpenAICompatible({
  name: "tandem", baseURL: BASE_URL, apiKey: API_KEY, includeUsage: true, supportsStructuredOutputs: true,
});
const forms = {
  model: former(MODEL), temperature: 0, maxRetries: 0, maxOutputTokens: 600, schema: jsonSchema(SCHEMA),
  prompt: FORM_QUESTION,
};

task("generate object", async () => {
  const { object, finishReason } = await generateObject(forms);
  checkReport(object);
  equal(finishReason, "stop", "finish_reason");
});

task("generate one of a list", async () => {
  const values = ["sunny", "cloudy", "rainy"];
  const { object } = await generateObject({ ...forms, schema: undefined, output: "enum", enum: values });
  check(values.includes(object), `the object is ${JSON.stringify(object)}`);
});

task("stream object", async () => {
  const errors = [];
  const result = streamObject({ ...forms, onError: ({ error }) => errors.push(error) });
  let count = 0;
  for await (const _ of result.partialObjectStream) count += 1;
  if (errors.length > 0) throw errors[0];
  checkReport(await result.object);
  check(count > 2, `${count} partial objects`);
});

task("output of a text", async () => {
  const output = Output.object({ schema: jsonSchema(SCHEMA) });
  const { schema, ...rest } = forms;
  checkReport((await generateText({ ...rest, output })).output);
});

task("calls that must come", async () => {
  const tools = { report: tool({ description: "Reports the weather.", inputSchema: jsonSchema(SCHEMA) }) };
  for (const toolChoice of ["required", { type: "tool", toolName: "report" }]) {
    const { schema, ...rest } = forms;
    const { toolCalls } = await generateText({ ...rest, tools, toolChoice });
    equal(toolCalls[0].toolName, "report", "the call");
    checkReport(toolCalls[0].input);
  }
});

await main();
