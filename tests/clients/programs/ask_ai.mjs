// Vercel's `ai` with @ai-sdk/openai-compatible. It reads no logprobs; the task for them reads the body that it keeps.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";
import {
  ANSWER, API_KEY, BASE_URL, MODEL, PROMPT, QUESTION, SECOND_ANSWER, SECOND_QUESTION,
  check, checkLogprobs, checkUsage, equal, main, task,
} from "./report.mjs";

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

await main();
