"""OpenAI's Python client: chat, completions, errors, the tools and reasoning of openai_tools.py, and the fields of
openai_no_ops.py, which change nothing.
"""

import math
from functools import partial
from itertools import pairwise

import openai
from openai.types import Completion, Model
from openai.types.chat import ChatCompletionChunk
from openai_calls import CLIENT, MESSAGES, chat, check_answer, complete
from openai_forms import FORM_TASKS
from openai_no_ops import NO_OP_TASKS
from openai_tools import TOOL_TASKS
from report import (
    ANSWER,
    API_KEY,
    BASE_URL,
    MODEL,
    PROMPT,
    QUESTION,
    SECOND_ANSWER,
    SECOND_QUESTION,
    TASKS,
    check,
    check_logprobs,
    check_usage,
    equal,
    main,
    task,
)

TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}


@task
def models():
    (model,) = CLIENT.models.list().data
    equal((type(model), model.id, model.object), (Model, MODEL, "model"), "the model")
    check(isinstance(model.created, int) and isinstance(model.owned_by, str), f"no created or owned_by in {model}")
    equal(CLIENT.models.retrieve(MODEL).id, MODEL, "the model by name")


@task
def plain_chat():
    check_answer(chat())


@task
def chat_as_vllm_users_read_it():
    """vLLM's own fields are attributes, null where they are not asked for."""
    answer = chat()
    for name in ("prompt_logprobs", "prompt_token_ids", "kv_transfer_params"):
        check(name in answer.model_fields_set | (answer.model_extra or {}).keys(), f"the answer has no {name}")
        equal(getattr(answer, name), None, name)
    choice = answer.choices[0]
    for name in ("stop_reason", "token_ids"):
        check(hasattr(choice, name), f"the choice has no {name}")


@task
def chat_stream():
    chunks = list(chat(stream=True))
    check(all(type(chunk) is ChatCompletionChunk for chunk in chunks), "chunks of another type")
    equal(len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}), 1, "the number of ids in a stream")
    equal(chunks[0].choices[0].delta.role, "assistant", "the first role")
    equal("".join(chunk.choices[0].delta.content or "" for chunk in chunks), ANSWER, "the text")
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    equal((reasons[-1], set(reasons[:-1])), ("stop", {None}), "finish_reason")


@task
def chat_stream_with_usage():
    *chunks, last = chat(stream=True, stream_options={"include_usage": True})
    equal((last.choices, {chunk.usage for chunk in chunks}), ([], {None}), "the choices and usages")
    equal(last.usage.model_dump(), chat().usage.model_dump() | last.usage.model_dump(), "the usage")
    check_usage(last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens)


@task
def chat_stream_with_continuous_usage():
    options = {"include_usage": True, "continuous_usage_stats": True}
    usages = [chunk.usage for chunk in chat(stream=True, stream_options=options)]
    check(None not in usages, "a chunk has no usage")
    counts = [usage.completion_tokens for usage in usages]
    check(all(left <= right for left, right in pairwise(counts)) and counts[-1] > 1, f"completion tokens {counts}")
    for usage in usages:
        equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens, "total_tokens")


@task
def chat_stream_without_obfuscation():
    chunks = list(chat(stream=True, stream_options={"include_obfuscation": False}))
    equal("".join(chunk.choices[0].delta.content or "" for chunk in chunks), ANSWER, "the text")


@task
def chat_stream_helper():
    with CLIENT.chat.completions.stream(model=MODEL, messages=MESSAGES, temperature=0) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    equal("".join(deltas), ANSWER, "the deltas")
    equal(final.choices[0].message.content, ANSWER, "the text")


@task
def chat_parse_helper():
    """Sends response_format and tools as the client omits them."""
    answer = CLIENT.chat.completions.parse(model=MODEL, messages=MESSAGES, temperature=0)
    equal(answer.choices[0].message.content, ANSWER, "the text")


@task
async def async_chat_stream():
    async with openai.AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0) as client:
        stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    equal(text, ANSWER, "the text")


@task
def chat_logprobs():
    answer = chat(logprobs=True, top_logprobs=3)
    entries = answer.choices[0].logprobs.content
    check_logprobs((entry.logprob for entry in entries), answer.usage.completion_tokens)
    for entry in entries:
        tops = [top.logprob for top in entry.top_logprobs]
        equal((len(tops), tops), (3, sorted(tops, reverse=True)), "top_logprobs")
        equal((entry.top_logprobs[0].token, tops[0]), (entry.token, entry.logprob), "the greedy token")
        check(sum(map(math.exp, tops)) <= 1.001, f"probabilities of {tops} are more than 1 together")
    text = bytes(byte for entry in entries for byte in entry.bytes).decode()
    check(text.startswith(ANSWER), f"the bytes of the tokens are {text!r}")


@task
def chat_logprobs_without_top():
    entries = chat(logprobs=True).choices[0].logprobs.content
    equal([entry.top_logprobs for entry in entries], [[]] * len(entries), "top_logprobs")


@task
def chat_stream_logprobs():
    whole = chat(logprobs=True, top_logprobs=2).choices[0].logprobs
    chunks = [chunk.choices[0].logprobs for chunk in chat(logprobs=True, top_logprobs=2, stream=True)]
    streamed = [entry.model_dump() for logprobs in chunks if logprobs for entry in logprobs.content]
    equal(streamed, [entry.model_dump() for entry in whole.content], "the streamed logprobs")


@task
def second_turn():
    """The first answer goes back as the client dumps it, with all its nulls."""
    echoed = chat().choices[0].message.model_dump()
    check_answer(chat(messages=[*MESSAGES, echoed, {"role": "user", "content": SECOND_QUESTION}]), SECOND_ANSWER)


@task
def second_turn_as_other_servers_dump_it():
    echoed = {"role": "assistant", "content": ANSWER, "refusal": None, "annotations": [], "audio": None}
    echoed |= {"tool_calls": None, "function_call": None, "reasoning_content": None, "reasoning_details": []}
    part = {"type": "text", "text": SECOND_QUESTION, "cache_control": {"type": "ephemeral"}}
    answer = chat(messages=[*MESSAGES, echoed, {"role": "user", "content": [part], "name": "someone"}])
    check_answer(answer, SECOND_ANSWER)


@task
def developer_message():
    """A developer message reaches the prompt, as a system message does."""
    roles = ("developer", "system")
    answers = [chat(messages=[{"role": role, "content": "Be brief."}, *MESSAGES]) for role in roles]
    counts = [answer.usage.prompt_tokens for answer in answers]
    equal(counts[0], counts[1], "the number of prompt tokens")
    check(counts[0] > chat().usage.prompt_tokens, "the message is not in the prompt")


@task
def two_choices():
    answer = chat(n=2, temperature=1, seed=3, max_tokens=8)
    equal([choice.index for choice in answer.choices], [0, 1], "the indices")
    check(answer.usage.completion_tokens <= 16, f"usage {answer.usage}")


@task
def max_tokens_and_stop():
    for fields in ({"max_tokens": 3}, {"max_completion_tokens": 3}, {"max_tokens": 99, "max_completion_tokens": 3}):
        answer = chat(**fields)
        equal((answer.choices[0].finish_reason, answer.usage.completion_tokens), ("length", 3), str(fields))
    choice = chat(stop=["="]).choices[0]
    equal((choice.finish_reason, choice.message.content), ("stop", ANSWER.partition("=")[0]), "the answer")


@task
def seed():
    texts = {chat(temperature=2, seed=7, max_tokens=20).choices[0].message.content for _ in range(2)}
    equal(len(texts), 1, "the number of answers for a seed")


@task
def logit_bias():
    """The first token of the answer gets -100; another one comes instead."""
    ids = complete(max_tokens=1, extra_body={"return_token_ids": True}).choices[0].token_ids
    for ask in (chat, complete):
        biased = ask(max_tokens=1, logit_bias={str(ids[0]): -100}, extra_body={"return_token_ids": True})
        check(biased.choices[0].token_ids != ids, f"token {ids[0]} comes in spite of its bias")


@task
def tools_offered():
    answer = chat(tools=[TOOL], tool_choice="auto")
    equal(answer.choices[0].message.content, ANSWER, "the text")
    check(answer.usage.prompt_tokens > chat().usage.prompt_tokens, "the tool is not in the prompt")


@task
def plain_completion():
    answer = complete()
    equal((type(answer), answer.object, answer.model), (Completion, "text_completion", MODEL), "the answer")
    (choice,) = answer.choices
    equal((choice.text, choice.finish_reason, choice.logprobs), (ANSWER, "stop", None), "the choice")
    check_usage(answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens)


@task
def completion_stream():
    *chunks, last = complete(stream=True, stream_options={"include_usage": True})
    equal("".join(chunk.choices[0].text for chunk in chunks), ANSWER, "the text")
    equal((chunks[-1].choices[0].finish_reason, last.choices), ("stop", []), "the end")
    check_usage(last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens)


@task
def completion_logprobs():
    answer = complete(logprobs=2)
    logprobs = answer.choices[0].logprobs
    check_logprobs(logprobs.token_logprobs, answer.usage.completion_tokens)
    lengths = {len(column) for column in (logprobs.tokens, logprobs.top_logprobs, logprobs.text_offset)}
    equal(lengths, {answer.usage.completion_tokens}, "the lengths of tokens, top_logprobs and text_offset")
    for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        equal(top[token], logprob, f"the logprob of {token!r} in top_logprobs")
    check("".join(logprobs.tokens).startswith(ANSWER), f"the tokens are {logprobs.tokens}")


@task
def completion_stream_logprobs():
    whole = complete(logprobs=2).choices[0].logprobs
    chunks = [chunk.choices[0].logprobs for chunk in complete(logprobs=2, stream=True)]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        streamed = [value for logprobs in chunks if logprobs for value in getattr(logprobs, name)]
        equal(streamed, getattr(whole, name), name)


@task
def completion_of_many_prompts():
    answer = complete(prompt=[PROMPT, PROMPT], n=1)
    equal([(choice.index, choice.text) for choice in answer.choices], [(0, ANSWER), (1, ANSWER)], "the choices")


@task
def completion_of_token_ids():
    ids = complete(extra_body={"return_token_ids": True}).choices[0].prompt_token_ids
    equal(complete(prompt=ids).choices[0].text, ANSWER, "the text")


@task
def unknown_model():
    try:
        CLIENT.chat.completions.create(model="other", messages=MESSAGES)
    except openai.NotFoundError as error:
        equal((error.code, error.param), ("model_not_found", "model"), "code and param")
        check("other" in error.message, f"the message {error.message!r} does not name the model")
    else:
        check(False, "no error")


@task
def unknown_route():
    """The error is about the route: `model_not_found` would send users the wrong way."""
    try:
        CLIENT.moderations.create(input="Hi", model=MODEL)
    except openai.NotFoundError as error:
        check("/v1/moderations" in error.message, f"the message {error.message!r} does not name the route")
        check(error.code != "model_not_found", f"the code is {error.code}")
    else:
        check(False, "no error")


@task
def too_long_a_context():
    for ask, param in ((partial(chat, messages=[{"role": "user", "content": QUESTION * 999}]), "messages"),
                       (partial(complete, prompt=QUESTION * 999), "prompt")):  # fmt: skip
        try:
            ask()
        except openai.BadRequestError as error:
            equal((error.code, error.param), ("context_length_exceeded", param), "code and param")
            equal(error.type, "invalid_request_error", "the type")
        else:
            check(False, f"no error for {param}")


@task
def unknown_field():
    try:
        chat(extra_body={"no_such_field": 1})
    except openai.BadRequestError as error:
        check("no_such_field" in error.message, f"the message {error.message!r} does not name the field")
    else:
        check(False, "no error")


@task
def raw_response():
    raw = CLIENT.chat.completions.with_raw_response.create(model=MODEL, messages=MESSAGES, temperature=0)
    check(raw.headers["content-type"].startswith("application/json"), f"headers {raw.headers}")
    check_answer(raw.parse())


TASKS |= TOOL_TASKS | FORM_TASKS | NO_OP_TASKS

main()
