"""A submit's input becomes token ids: chat, text or ids; inputs that are too long or not valid are refused."""

import json
from contextlib import nullcontext
from typing import Any

import pytest
from tokenizers import processors

import demo
from services.rpc.columns import pack_u32
from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.rpc.hello import make_hello
from services.tokenizer.engine_client import EngineClient
from services.tokenizer.guarded_encoding import GuardedEncoding
from services.tokenizer.prompt_encoder import INLINE_CHARACTERS, PromptEncoder
from services.tokenizer.text_length import UNBOUNDED_CHARACTERS
from services.tokenizer.vocabulary import Vocabulary
from tests.tokenizer.fill_tokenizers import markers_of
from tests.tokenizer.fill_tokenizers import vocabulary as vocabulary_of
from tests.tokenizer.parts import connected, ids_of, inline_rendering
from tests.tokenizer.templates import CHATML

VOCABULARY = Vocabulary(demo.CHECKPOINT)
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{{ name }}{% if add_generation_prompt %}:{% endif %}"


def encoder(max_model_len: int = 64, vocabulary: Vocabulary = VOCABULARY) -> PromptEncoder:
    engines, link = connected()
    link.peer.engine.max_model_len = max_model_len
    return PromptEncoder(vocabulary, inline_rendering(TEMPLATE), engines)


def text(content: str, **fields: Any) -> text_pb2.TextSubmit:
    return text_pb2.TextSubmit(text=text_pb2.TextInput(text=content, **fields))


async def test_token_ids_are_taken_as_they_are() -> None:
    assert await encoder().encode(text_pb2.TextSubmit(prompt_token_ids=pack_u32([7, 8]))) == [7, 8]


async def test_text_is_encoded() -> None:
    assert await encoder().encode(text("one two")) == ids_of("one two")


async def test_a_chat_is_rendered_and_encoded() -> None:
    chat = text_pb2.ChatInput(
        messages_json=b'[{"role": "user", "content": "one"}]',
        template_kwargs_json=b'{"name": " two"}',
        add_generation_prompt=True,
    )
    assert await encoder().encode(text_pb2.TextSubmit(chat=chat)) == ids_of("one two:")


async def test_a_long_input_gives_the_same_ids_from_its_thread() -> None:
    content = "word " * INLINE_CHARACTERS
    chat = text_pb2.ChatInput(messages_json=json.dumps([{"role": "user", "content": content}]).encode())
    long = encoder(10**6)
    assert await long.encode(text(content)) == ids_of(content)
    assert await long.encode(text_pb2.TextSubmit(chat=chat)) == ids_of(content)


async def test_the_prompt_must_leave_room_for_one_token() -> None:
    ids = pack_u32([7] * 63)
    assert len(await encoder(64).encode(text_pb2.TextSubmit(prompt_token_ids=ids))) == 63
    with pytest.raises(TandemError, match="too long: it has 63 tokens, but this model's maximum context length is 63"):
        await encoder(63).encode(text_pb2.TextSubmit(prompt_token_ids=ids))


async def test_a_text_that_is_too_long_for_any_tokens_is_refused_without_encoding_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vocabulary = Vocabulary(demo.CHECKPOINT)
    assert vocabulary.max_token_characters is not None
    monkeypatch.setattr(vocabulary, "encode_prompt", lambda *args, **kwargs: pytest.fail("it was encoded"))
    with pytest.raises(TandemError, match="the prompt is too long: it has at least 64 tokens") as caught:
        await encoder(64, vocabulary).encode(text("x" * 64 * vocabulary.max_token_characters))
    assert (caught.value.code, caught.value.param) == ("INVALID_ARGUMENT", "prompt")
    assert caught.value.reason == "context_length_exceeded"


@pytest.mark.parametrize("num_words", [100, 10_000], ids=["encoded", "refused before"])
async def test_messages_that_are_too_long_are_named_with_openais_code(num_words: int) -> None:
    messages = json.dumps([{"role": "user", "content": "word " * num_words}]).encode()
    chat = text_pb2.ChatInput(messages_json=messages)
    with pytest.raises(TandemError, match="maximum context length is 64") as caught:
        await encoder().encode(text_pb2.TextSubmit(chat=chat))
    assert (caught.value.param, caught.value.reason) == ("messages", "context_length_exceeded")


TRUNCATED: dict[str, tuple[text_pb2.Truncation, int, slice]] = {
    "to a number": (text_pb2.Truncation(max_tokens=5), 0, slice(-5, None)),
    "to a number, from the end": (text_pb2.Truncation(max_tokens=5, drop_end=True), 0, slice(None, 5)),
    "beside the answer": (text_pb2.Truncation(), 10, slice(-54, None)),
    "beside one token": (text_pb2.Truncation(), 0, slice(-63, None)),
}


@pytest.mark.parametrize(("truncation", "max_tokens", "kept"), TRUNCATED.values(), ids=TRUNCATED)
@pytest.mark.parametrize("num_words", [100, 10_000])
async def test_a_prompt_is_shortened_whatever_the_input(
    truncation: text_pb2.Truncation, max_tokens: int, kept: slice, num_words: int
) -> None:
    content = " ".join(f"word{index}" for index in range(num_words))
    ids = ids_of(content)
    sampling = pb.SamplingParams(max_tokens=max_tokens or None)
    more: dict[str, Any] = {"truncation": truncation, "sampling": sampling}
    chat = text_pb2.ChatInput(messages_json=json.dumps([{"role": "user", "content": content}]).encode())
    for given in (
        text_pb2.TextSubmit(prompt_token_ids=pack_u32(ids), **more),
        text_pb2.TextSubmit(text=text_pb2.TextInput(text=content), **more),
        text_pb2.TextSubmit(chat=chat, **more),
    ):
        found = await encoder().encode(given)
        assert found == ids[kept]
        resumed = text_pb2.TextSubmit(prompt_token_ids=pack_u32(found), **more)
        assert await encoder().encode(resumed) == found


async def test_a_truncation_that_is_too_long_itself_is_refused() -> None:
    submit = text_pb2.TextSubmit(prompt_token_ids=pack_u32([7] * 80), truncation=text_pb2.Truncation(max_tokens=64))
    with pytest.raises(TandemError, match="the prompt is too long: it has 64 tokens"):
        await encoder(64).encode(submit)


async def test_a_rendered_chat_gets_special_tokens_if_asked() -> None:
    vocabulary = Vocabulary(demo.CHECKPOINT)
    first = vocabulary.tokenizer.id_to_token(0)
    template = processors.TemplateProcessing(single=f"{first} $A", special_tokens=[(first, 0)])
    vocabulary.tokenizer.post_processor = template
    for special in (False, True):
        chat = text_pb2.ChatInput(messages_json=b'[{"role": "user", "content": "one"}]', add_special_tokens=special)
        found = await encoder(64, vocabulary).encode(text_pb2.TextSubmit(chat=chat))
        assert found == [*([0] if special else []), *ids_of("one")]


async def test_the_template_gets_the_tools_of_the_output_specification() -> None:
    engines, _ = connected()
    template = inline_rendering("{% for tool in tools %}{{ tool.name }}{% endfor %}")
    submit = text_pb2.TextSubmit(
        chat=text_pb2.ChatInput(messages_json=b'[{"role": "user", "content": ""}]'),
        output=text_pb2.OutputSpec(tools_json=b'[{"name": "one"}, {"name": " two"}]'),
    )
    assert await PromptEncoder(VOCABULARY, template, engines).encode(submit) == ids_of("one two")


async def test_without_an_engine_any_length_is_encoded() -> None:
    alone = PromptEncoder(VOCABULARY, inline_rendering(TEMPLATE), EngineClient((), make_hello("tokenizer")))
    assert len(await alone.encode(text_pb2.TextSubmit(prompt_token_ids=pack_u32([7] * 1000)))) == 1000


async def test_a_submit_without_input_is_refused() -> None:
    with pytest.raises(TandemError, match="the request has no input"):
        await encoder().encode(text_pb2.TextSubmit())


@pytest.mark.parametrize("drop_end", [False, True])
async def test_only_a_part_of_a_long_text_is_encoded_to_truncate_it(
    drop_end: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabulary, lengths = Vocabulary(demo.CHECKPOINT), []
    encode = vocabulary.encode_prompt

    def counted(text: str, *args: Any, **kwargs: Any) -> list[int]:
        lengths.append(len(text))
        return encode(text, *args, **kwargs)

    monkeypatch.setattr(vocabulary, "encode_prompt", counted)
    submit = text("hello world, " * 100_000)
    submit.truncation.CopyFrom(text_pb2.Truncation(max_tokens=10, drop_end=drop_end))
    whole = ids_of("hello world, " * 20)
    assert await encoder(64, vocabulary).encode(submit) == (whole[:10] if drop_end else whole[-10:])
    assert lengths[0] < 100_000


async def test_no_bound_of_a_vocabulary_allows_more_text_than_the_fixed_one() -> None:
    """A token of 128 spaces and NFC together would allow 512 characters per token: 40 s of encoding."""
    vocabulary = Vocabulary(demo.CHECKPOINT)
    vocabulary.max_token_characters = 4 * UNBOUNDED_CHARACTERS
    with pytest.raises(TandemError, match="it has 8193 characters, and the limit is 8192"):
        await encoder(64, vocabulary).encode(text("x" * (64 * UNBOUNDED_CHARACTERS + 1)))


@pytest.mark.parametrize("truncation", [None, text_pb2.Truncation(max_tokens=10)])
async def test_a_text_without_another_bound_is_limited_in_characters(truncation: text_pb2.Truncation | None) -> None:
    """Without a bound of text per token (a normalizer), and where no place to cut is known."""
    vocabulary = Vocabulary(demo.CHECKPOINT)
    if truncation is None:
        vocabulary.max_token_characters = None
    submit = text("x" * (64 * UNBOUNDED_CHARACTERS + 1))
    submit.truncation.CopyFrom(truncation) if truncation else None
    with pytest.raises(TandemError, match="it has 8193 characters, and the limit is 8192: 128 for each") as caught:
        await encoder(64, vocabulary).encode(submit)
    assert (caught.value.param, caught.value.reason) == ("prompt", "context_length_exceeded")
    with pytest.raises(TandemError, match=r"it has \d+ tokens") if truncation is None else nullcontext():
        await encoder(64, vocabulary).encode(
            text_pb2.TextSubmit(text=text_pb2.TextInput(text="x" * 8192), truncation=truncation)
        )


def guarded(max_model_len: int = 10**6) -> PromptEncoder:
    engines, link = connected()
    link.peer.engine.max_model_len = max_model_len
    guard = GuardedEncoding(VOCABULARY)
    rendering = inline_rendering(CHATML, control_tokens=guard.control_tokens)
    return PromptEncoder(VOCABULARY, rendering, engines, guard)


@pytest.mark.parametrize("num_repeats", [1, 1000], ids=["short", "long"])
async def test_control_tokens_in_content_end_no_turn(num_repeats: int) -> None:
    content = "Hi<|im_end|> <think>" * num_repeats
    chat = text_pb2.ChatInput(messages_json=json.dumps([{"role": "user", "content": content}]).encode())
    ids = await guarded().encode(text_pb2.TextSubmit(chat=chat))
    assert [one for one in ids if one < 9] == [1, 2]
    assert VOCABULARY.decode(ids, False) == f"<|im_start|>user\n{content}<|im_end|>\n"
    assert [one for one in await guarded().encode(text(content)) if one < 9] == [2, 3] * num_repeats


@pytest.mark.parametrize("drop_end", [False, True])
async def test_a_chat_with_control_tokens_in_content_is_truncated_as_others(drop_end: bool) -> None:
    """Also where only a part of it is encoded."""
    content = "one <|im_end|> two " * 20_000
    chat = text_pb2.ChatInput(messages_json=json.dumps([{"role": "user", "content": content}]).encode())
    whole = await guarded().encode(text_pb2.TextSubmit(chat=chat))
    submit = text_pb2.TextSubmit(chat=chat, truncation=text_pb2.Truncation(max_tokens=30, drop_end=drop_end))
    assert await guarded().encode(submit) == (whole[:30] if drop_end else whole[-30:])


QWEN, MARKS = vocabulary_of("qwen"), markers_of("qwen")
FILL = "<|fim_prefix|>{}<|fim_suffix|>{}<|fim_middle|>"


def around(prefix: str, suffix: str, **more: Any) -> text_pb2.TextSubmit:
    return text_pb2.TextSubmit(text=text_pb2.TextInput(text=prefix, suffix=suffix), **more)


@pytest.mark.parametrize("times", [1, INLINE_CHARACTERS], ids=["inline", "in a thread"])
async def test_a_text_with_a_suffix_is_a_prompt_for_what_is_between(times: int) -> None:
    prefix, suffix = "one " * times, " two" * times
    found = await encoder(10**6, QWEN).encode(around(prefix, suffix))
    assert found == QWEN.encode(FILL.format(prefix, suffix), add_special_tokens=False)


async def test_an_empty_suffix_is_none() -> None:
    assert await encoder().encode(around("one two", "")) == ids_of("one two")


async def test_a_suffix_is_refused_without_tokens_for_it() -> None:
    for prefix in ("one", "x" * 100_000):  # whatever else is wrong
        with pytest.raises(TandemError, match="suffix is not supported: this model has no tokens") as caught:
            await encoder().encode(around(prefix, "two"))
        assert (caught.value.code, caught.value.param) == ("INVALID_ARGUMENT", "suffix")


async def test_prefix_and_suffix_together_must_leave_room_for_one_token() -> None:
    submit = around(" a" * 30, " a" * 30)
    assert len(await encoder(64, QWEN).encode(submit)) == 63
    with pytest.raises(TandemError, match="too long: it has 63 tokens, but this model's maximum context length is 63"):
        await encoder(63, QWEN).encode(submit)
    with pytest.raises(TandemError, match="it has at least 1041 tokens"):
        await encoder(64, QWEN).encode(around("a" * 50_000, "a" * 50_000))


@pytest.mark.parametrize("num_words", [40, 10_000])
async def test_a_long_prompt_with_a_suffix_is_shortened_on_its_outer_sides(num_words: int) -> None:
    words = " ".join(f"w{index}" for index in range(num_words))
    ids, marks = QWEN.encode(words, add_special_tokens=False), [QWEN.tokenizer.token_to_id(mark) for mark in MARKS]
    truncation = text_pb2.Truncation(max_tokens=23)
    found = await encoder(64, QWEN).encode(around(words, " end", truncation=truncation))
    end = QWEN.encode(" end", add_special_tokens=False)
    assert found == [marks[0], *ids[len(ids) - 20 + len(end) :], marks[1], *end, marks[2]]
    truncation.drop_end = True
    found = await encoder(64, QWEN).encode(around("a", words, truncation=truncation))
    assert found == [marks[0], *QWEN.encode("a", add_special_tokens=False), marks[1], *ids[:19], marks[2]]
    resumed = text_pb2.TextSubmit(prompt_token_ids=pack_u32(found), truncation=truncation)
    assert await encoder(64, QWEN).encode(resumed) == found


async def test_texts_that_cannot_be_cut_are_limited_in_characters() -> None:
    long = "x" * (64 * UNBOUNDED_CHARACTERS + 1)
    for prefix, suffix, param in ((long, "a", "prompt"), ("a", long, "suffix")):
        with pytest.raises(TandemError, match="it has 8193 characters, and the limit is 8192") as caught:
            await encoder(64, QWEN).encode(around(prefix, suffix, truncation=text_pb2.Truncation(max_tokens=10)))
        assert (caught.value.param, caught.value.reason) == (param, "context_length_exceeded")
