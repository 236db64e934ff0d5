"""A submit's output specification resolves once: a resume brings what came back with its acceptance."""

import pytest

from services.rpc.columns import pack_u32, unpack_u32
from services.rpc.errors import TandemError
from services.rpc.generated import text_pb2
from services.tokenizer.output_resolver import INLINE_WORDS, OutputResolver
from tests.tokenizer.parts import answer_formats, connected, ids_of, output_resolver


def resolver(max_bad_words: int = 0, vocab_size: int = 1030) -> OutputResolver:
    engines, link = connected()
    link.peer.engine.limits.max_bad_words = max_bad_words
    link.peer.engine.vocab_size = vocab_size
    return output_resolver(engines, answer_formats("hermes", "qwen3"))


def submit(words: list[str]) -> text_pb2.TextSubmit:
    return text_pb2.TextSubmit(output=text_pb2.OutputSpec(bad_words=words))


async def test_an_output_without_bad_words_resolves_to_nothing() -> None:
    assert await resolver().resolve(submit([]), []) == text_pb2.ResolvedOutput()


async def test_bad_words_resolve_to_their_token_ids() -> None:
    found = await resolver().resolve(submit(["🙂"]), [])
    assert [unpack_u32(column) for column in found.bad_words_token_ids] == [ids_of("🙂")]


async def test_many_words_give_the_same_from_their_thread() -> None:
    words = [f"🙂{index}" for index in range(INLINE_WORDS + 1)]
    found = await resolver().resolve(submit(words), [])
    assert [unpack_u32(column) for column in found.bad_words_token_ids] == list(map(ids_of, words))


async def test_a_resume_keeps_what_was_resolved() -> None:
    resumed = submit(["🙂"])
    resumed.resolved.bad_words_token_ids.append(pack_u32([7]))
    assert await resolver().resolve(resumed, []) == resumed.resolved


async def test_the_engines_limit_counts() -> None:
    assert await resolver(1).resolve(submit(["🙂"]), [])
    with pytest.raises(TandemError, match="bad_words are 2 words: the limit is 1"):
        await resolver(1).resolve(submit(["🙂", "🙂"]), [])


async def test_a_malformed_column_of_a_resume_is_refused() -> None:
    resumed = submit([])
    resumed.resolved.bad_words_token_ids.append(b"abc")
    with pytest.raises(ValueError, match="a column has 3 bytes"):
        await resolver().resolve(resumed, [])


def structured(**form: object) -> text_pb2.TextSubmit:
    output = text_pb2.OutputSpec(structured=text_pb2.StructuredOutput(field="response_format", **form))  # type: ignore[arg-type]
    return text_pb2.TextSubmit(output=output)


async def test_a_form_resolves_to_its_checked_grammar() -> None:
    found = await resolver().resolve(structured(json_schema=b'{"type": "integer"}'), [])
    assert '"integer"' in found.grammar


async def test_a_resume_keeps_its_grammar_as_it_is() -> None:
    resumed = structured(json_schema=b'{"type": "integer"}')
    resumed.resolved.grammar = "anything"
    assert (await resolver().resolve(resumed, [])).grammar == "anything"


async def test_a_schema_that_does_not_compile_is_refused_by_the_clients_field() -> None:
    with pytest.raises(TandemError, match="response_format: ") as caught:
        await resolver().resolve(structured(json_schema=b'{"type": "string", "minLength": 3, "maxLength": 2}'), [])
    assert (caught.value.code, caught.value.param) == ("INVALID_ARGUMENT", "response_format")


async def test_logits_narrower_than_the_vocabulary_are_refused() -> None:
    with pytest.raises(TandemError, match="response_format: the model's tokenizer.json does not support grammars"):
        await resolver(vocab_size=100).resolve(structured(json_object=True), [])


async def test_a_continued_message_has_no_reasoning() -> None:
    fresh, continued = structured(regex="a"), structured(regex="a")
    fresh.output.separate_reasoning = continued.output.separate_reasoning = True
    continued.chat.continue_final_message = True
    prompt = ids_of("<|im_start|>assistant\nSo")
    assert "reasoning" in (await resolver().resolve(fresh, prompt)).grammar
    assert "reasoning" not in (await resolver().resolve(continued, prompt)).grammar
    opened = ids_of("<|im_start|>assistant\n<think>So")
    assert "reasoning" in (await resolver().resolve(continued, opened)).grammar
