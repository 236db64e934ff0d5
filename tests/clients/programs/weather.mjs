// The round trip of a tool; the same as weather.py and recorder.py. The recorder is a fetch that both clients take.

import { check, equal } from "./report.mjs";

const CITIES = ["Paris", "Berlin", "Oslo", "New Delhi", "London", "Hamburg", "Chicago", "Zurich", "Osaka", "Prague"];
const SKIES = ["sunny", "cloudy", "rainy", "windy", "foggy", "snowy"];
const DEGREES = [...Array(36).keys()].filter((degrees) => degrees % 11 !== 0);
export const NAME = "get_weather";
export const DESCRIPTION = "Get the weather in a city.";
export const PARAMETERS = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
export const TOOL = { type: "function", function: { name: NAME, description: DESCRIPTION, parameters: PARAMETERS } };
export const THINKING = { chat_template_kwargs: { enable_thinking: true } };
export const SECOND_THOUGHT = "The tool has answered.";

const oneOf = (values) => values[Math.floor(Math.random() * values.length)];

function weather() {
  const [city, sky, degrees] = [oneOf(CITIES), oneOf(SKIES), oneOf(DEGREES)];
  const calls = [];
  return {
    city, calls,
    question: `What is the weather in ${city}?`,
    thought: `I look up ${city}.`,
    result: `${degrees} degrees, ${sky}`,
    sentence: `It is ${sky} in ${city}, with ${degrees} degrees.`,
    getWeather(input) {
      calls.push(input.city);
      return this.result;
    },
    checkCall(name, input) {
      equal([name, typeof input === "string" ? JSON.parse(input) : input], [NAME, { city }], "the call");
    },
  };
}

// Runs a task with a question and a fetch, then checks the tool's calls and what passed between client and server.
export async function roundTrip({ stream, thinking = false }, run) {
  const asked = weather();
  const kept = [];
  const recording = async (url, options) => {
    const response = await fetch(url, options);
    kept.push({ request: JSON.parse(options.body), status: response.status, body: response.clone().text() });
    return response;
  };
  await run(asked, recording);
  equal(asked.calls, [asked.city], "the calls of the tool");
  const exchanges = [];
  for (const { request, status, body } of kept) {
    const text = await body;
    check(status === 200, `the server's answer is ${status} ${text}`);
    equal(request.stream ?? false, stream, "stream");
    exchanges.push({ request, choice: stream ? joined(text) : JSON.parse(text).choices[0] });
  }
  checkExchanges(exchanges, asked, thinking);
}

function joined(text) {
  const data = text.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6));
  equal(data.pop(), "[DONE]", "the last event");
  const message = { content: null };
  let finish_reason = null;
  for (const { delta, ...choice } of data.flatMap((one) => JSON.parse(one).choices)) {
    equal(finish_reason, null, "the finish_reason before the last chunk");
    finish_reason = choice.finish_reason;
    for (const name of ["content", "reasoning", "reasoning_content"])
      if (delta[name] != null) message[name] = (message[name] ?? "") + delta[name];
    for (const { index, id, type, function: part } of delta.tool_calls ?? []) {
      message.tool_calls ??= [];
      if (index === message.tool_calls.length) {
        check(id && type === "function" && part.name, `a call begins with ${JSON.stringify(part)}`);
        message.tool_calls.push({ id, type, function: { name: part.name, arguments: "" } });
      } else {
        equal([index, id, part.name], [message.tool_calls.length - 1, undefined, undefined], "the rest of a call");
      }
      message.tool_calls[index].function.arguments += part.arguments ?? "";
    }
  }
  return { message, finish_reason };
}

const textOf = ({ choice }, name) => (choice.message[name] ?? "").trim();

function checkExchanges(exchanges, asked, thinking) {
  equal(exchanges.length, 2, "the number of requests");
  const [first, second] = exchanges;
  equal(first.request.tools.map((tool) => tool.function.name), [NAME], "the tools");
  equal([first.choice.finish_reason, textOf(first, "content")], ["tool_calls", ""], "the first answer");
  const calls = first.choice.message.tool_calls;
  equal(calls.length, 1, "the number of calls");
  asked.checkCall(calls[0].function.name, calls[0].function.arguments);
  const { messages } = second.request;
  const echoed = messages.flatMap((message) => message.tool_calls ?? []);
  equal(echoed.map((call) => call.id), [calls[0].id], "the calls in the history");
  asked.checkCall(echoed[0].function.name, echoed[0].function.arguments);
  const results = messages.filter((message) => message.role === "tool");
  equal(results.map((result) => result.tool_call_id), [calls[0].id], "the results in the history");
  check(JSON.stringify(results[0].content).includes(asked.result), `the result is ${results[0].content}`);
  equal([textOf(second, "content"), second.choice.finish_reason], [asked.sentence, "stop"], "the sentence");
  const thoughts = thinking ? [asked.thought, SECOND_THOUGHT] : ["", ""];
  for (const name of ["reasoning", "reasoning_content"])
    equal([textOf(first, name), textOf(second, name)], thoughts, name);
}
