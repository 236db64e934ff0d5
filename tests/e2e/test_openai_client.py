"""OpenAI's Python client, synchronous and asynchronous, parses every answer, stream and error."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.e2e.harness import Server, wait_for

MODEL = "demo"
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hi"}]
PROMPT = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


@pytest.fixture
def server(demo_server: Server) -> Server:
    return demo_server


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with server.openai() as client:
        yield client


@pytest.fixture
async def async_client(server: Server) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_completion_tokens=60)
    (choice,) = answer.choices
    assert (answer.object, answer.model) == ("chat.completion", MODEL)
    assert (choice.message.role, choice.finish_reason, choice.logprobs) == ("assistant", "stop", None)
    assert choice.message.content
    assert choice.message.tool_calls is None
    assert answer.system_fingerprint
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens is not None


def test_chat_stream(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=60)
    with client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=60, stream=True, stream_options={"include_usage": True}
    ) as stream:
        *chunks, last = stream
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert last.choices == []
    assert last.usage is not None and whole.usage is not None
    assert last.usage.completion_tokens == whole.usage.completion_tokens


def test_the_clients_own_fold_of_a_stream(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=60, logprobs=True, top_logprobs=2)
    with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, max_tokens=60, logprobs=True, top_logprobs=2
    ) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content == whole.choices[0].message.content
    assert final.choices[0].finish_reason == "stop"
    folded, expected = final.choices[0].logprobs, whole.choices[0].logprobs
    assert folded is not None and expected is not None
    assert folded.content == expected.content


def test_chat_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=5, logprobs=True, top_logprobs=3, temperature=0
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert len(logprobs.content) == 5
    for entry in logprobs.content:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token
        assert entry.top_logprobs[0].logprob == entry.logprob <= 0
        assert bytes(entry.bytes or ()).decode() == entry.token


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=60, temperature=0, logprobs=2)
    chat = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=60, temperature=0)
    (choice,) = answer.choices
    assert (answer.object, choice.finish_reason) == ("text_completion", "stop")
    assert choice.text == chat.choices[0].message.content
    assert answer.usage is not None and choice.logprobs is not None
    assert choice.logprobs.tokens is not None and choice.logprobs.top_logprobs is not None
    assert len(choice.logprobs.tokens) == answer.usage.completion_tokens
    assert all(len(top) == 2 for top in choice.logprobs.top_logprobs)


def test_completions_stream(client: openai.OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=60)
    with client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=60, stream=True) as stream:
        chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_several_prompts_and_choices(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=[PROMPT, "x"], n=2, max_tokens=4, temperature=1, seed=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]


def test_extra_parameters(client: openai.OpenAI) -> None:
    extra: dict[str, Any] = {"top_k": 1, "ignore_eos": True, "min_tokens": 3, "return_token_ids": True}
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=40, temperature=1, extra_body=extra
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 40
    assert len(answer.choices[0].token_ids) == 40  # type: ignore[attr-defined]
    greedy = client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0)
    assert answer.choices[0].message.content is not None
    assert answer.choices[0].message.content.startswith(greedy.choices[0].message.content or "?")
    thinking = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=1, extra_body={"chat_template_kwargs": {"enable_thinking": True}}
    )
    assert thinking.usage is not None
    # Without thinking the template puts an empty block into the prompt.
    assert thinking.usage.prompt_tokens < answer.usage.prompt_tokens


def test_stop(client: openai.OpenAI) -> None:
    plain = client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0)
    text = plain.choices[0].message.content or ""
    stopped = client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0, stop=[text[5:8]])
    assert stopped.choices[0].message.content == text[: text.index(text[5:8])]
    assert stopped.choices[0].finish_reason == "stop"


def test_errors_have_their_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-4", messages=MESSAGES)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=3)
    assert (wrong.value.param, wrong.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.BadRequestError, match="best_of: another value is not supported"):
        client.completions.create(model=MODEL, prompt="x", best_of=2)
    with pytest.raises(openai.BadRequestError, match="maximum context length is 2048"):
        client.completions.create(model=MODEL, prompt="a " * 4000)
    with pytest.raises(openai.BadRequestError, match="tool_choice"):
        client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            tools=[{"type": "function", "function": {"name": "f"}}],
            tool_choice={"type": "function", "function": {"name": "g"}},
        )


def test_an_error_before_a_stream_is_raised_at_once(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="not in the vocabulary"):
        client.completions.create(model=MODEL, prompt=[10**6], stream=True)


async def test_async_chat(async_client: openai.AsyncOpenAI) -> None:
    whole = await async_client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=60)
    stream = await async_client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=60, stream=True)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == whole.choices[0].message.content


async def test_async_completions(async_client: openai.AsyncOpenAI) -> None:
    whole = await async_client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=60)
    stream = await async_client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=60, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == whole.choices[0].text


async def test_concurrent_streams_get_their_own_answers(async_client: openai.AsyncOpenAI) -> None:
    """Sixteen concurrent streams, each equal to the same request alone."""

    async def text(seed: int) -> str:
        stream = await async_client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            max_tokens=40,
            temperature=2,
            seed=seed,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    together = await asyncio.gather(*map(text, range(16)))
    assert [await text(seed) for seed in (0, 7, 15)] == [together[seed] for seed in (0, 7, 15)]
    assert len(set(together)) == 16


async def test_async_errors(async_client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        await async_client.chat.completions.create(model="gpt-4", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError):
        await async_client.chat.completions.create(model=MODEL, messages=[])


async def test_async_hang_up(server: Server, async_client: openai.AsyncOpenAI) -> None:
    stream = await async_client.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, extra_body={"ignore_eos": True, "max_tokens": 2000}
    )
    async for _ in stream:
        break
    await stream.close()
    await asyncio.to_thread(wait_for, lambda: server.stats().num_running == 0, "the generation stops", 5)
