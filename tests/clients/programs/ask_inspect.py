"""inspect-ai: its providers openai-api and vllm, an evaluation, and one with a tool."""

from inspect_ai import Task as Evaluation
from inspect_ai import eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageSystem, ChatMessageUser, GenerateConfig, ModelOutput, get_model
from inspect_ai.scorer import exact
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import ToolDef
from report import (
    ANSWER,
    API_KEY,
    BASE_URL,
    MODEL,
    QUESTION,
    SECOND_ANSWER,
    SECOND_QUESTION,
    check,
    check_logprobs,
    check_usage,
    equal,
    main,
    task,
)
from weather import DESCRIPTION, NAME, THINKING, round_trip


def model(provider="openai-api/tandem", base_url=BASE_URL, extra_body=None, **args):
    config = GenerateConfig(temperature=0, max_retries=0, timeout=60, extra_body=extra_body)
    return get_model(f"{provider}/{MODEL}", base_url=base_url, api_key=API_KEY, config=config, memoize=False, **args)


def check_output(output, wanted=ANSWER):
    equal((type(output), output.completion, output.stop_reason), (ModelOutput, wanted, "stop"), "the output")
    # inspect-ai subtracts what the prefix cache had from input_tokens.
    usage = output.usage
    prompt = usage.input_tokens + (usage.input_tokens_cache_read or 0)
    check_usage(prompt, usage.output_tokens, usage.total_tokens)


def check_output_logprobs(output):
    entries = output.choices[0].logprobs.content
    check_logprobs((entry.logprob for entry in entries), output.usage.output_tokens)
    for entry in entries:
        equal(entry.top_logprobs[0].token, entry.token, "the greedy token")


@task
async def plain_chat():
    check_output(await model().generate(QUESTION))


@task
async def plain_chat_as_vllm():
    check_output(await model("vllm").generate(QUESTION))


@task
async def chat_stream():
    check_output(await model(stream=True).generate(QUESTION))


@task
async def chat_logprobs():
    config = GenerateConfig(logprobs=True, top_logprobs=2)
    check_output_logprobs(await model().generate(QUESTION, config=config))


@task
async def chat_stream_logprobs():
    config = GenerateConfig(logprobs=True, top_logprobs=2)
    check_output_logprobs(await model(stream=True).generate(QUESTION, config=config))


@task
async def second_turn():
    turns = [ChatMessageSystem(content="Be brief."), ChatMessageUser(content=QUESTION)]
    first = await model().generate(turns)
    turns += [first.message, ChatMessageUser(content=SECOND_QUESTION)]
    check_output(await model().generate(turns), SECOND_ANSWER)


@task
async def settings_at_their_defaults():
    config = GenerateConfig(
        frequency_penalty=0, presence_penalty=0, logit_bias={}, num_choices=1, top_p=1, seed=1, parallel_tool_calls=True
    )
    check_output(await model().generate(QUESTION, config=config))


@task
def evaluation():
    samples = [Sample(input=QUESTION, target=ANSWER), Sample(input=SECOND_QUESTION, target=SECOND_ANSWER)]
    (log,) = evaluate(
        Evaluation(dataset=samples, solver=generate(), scorer=exact()), model=model(), display="none", log_format="json"
    )
    check(log.status == "success", f"status {log.status}: {log.error}")
    equal(log.results.scores[0].metrics["mean"].value, 1.0, "the mean score")


def tool_round_trip(stream, thinking=False):
    with round_trip(stream=stream, thinking=thinking) as (url, weather):
        tool = ToolDef(weather.async_tool(), NAME, DESCRIPTION, {"city": "The city."}).as_tool()
        asked = model(base_url=url, stream=stream, extra_body=THINKING if thinking else None)
        sample = Sample(input=weather.question, target=weather.sentence)
        evaluation = Evaluation(dataset=[sample], solver=[use_tools(tool), generate()], scorer=exact())
        (log,) = evaluate(evaluation, model=asked, display="none", log_format="json")
        check(log.status == "success", f"status {log.status}: {log.error}")
        _, called, result, last = log.samples[0].messages
        (call,) = called.tool_calls
        weather.check_call(call.function, call.arguments)
        equal((result.tool_call_id, result.text), (call.id, weather.result), "the result")
        weather.check_answer(last.text.strip())
        equal(log.results.scores[0].metrics["mean"].value, 1.0, "the mean score")


@task
def tool_round_trip_of_an_evaluation():
    tool_round_trip(stream=False)


@task
def tool_round_trip_of_an_evaluation_streamed():
    tool_round_trip(stream=True)


@task
def tool_round_trip_of_an_evaluation_with_reasoning():
    tool_round_trip(stream=False, thinking=True)


main()
