"""A submit's output specification resolves once: a resume brings what came back with its acceptance."""

import pytest

import demo
from services.rpc.columns import pack_u32, unpack_u32
from services.rpc.errors import TandemError
from services.rpc.generated import text_pb2
from services.tokenizer.output_resolver import INLINE_WORDS, OutputResolver
from services.tokenizer.vocabulary import Vocabulary
from tests.tokenizer.parts import connected, ids_of

VOCABULARY = Vocabulary(demo.CHECKPOINT)


def resolver(max_bad_words: int = 0) -> OutputResolver:
    engines, link = connected()
    link.peer.engine.limits.max_bad_words = max_bad_words
    return OutputResolver(VOCABULARY, engines)


def submit(words: list[str]) -> text_pb2.TextSubmit:
    return text_pb2.TextSubmit(output=text_pb2.OutputSpec(bad_words=words))


async def test_an_output_without_bad_words_resolves_to_nothing() -> None:
    assert await resolver().resolve(submit([])) == text_pb2.ResolvedOutput()


async def test_bad_words_resolve_to_their_token_ids() -> None:
    found = await resolver().resolve(submit(["🙂"]))
    assert [unpack_u32(column) for column in found.bad_words_token_ids] == [ids_of("🙂")]


async def test_many_words_give_the_same_from_their_thread() -> None:
    words = [f"🙂{index}" for index in range(INLINE_WORDS + 1)]
    found = await resolver().resolve(submit(words))
    assert [unpack_u32(column) for column in found.bad_words_token_ids] == list(map(ids_of, words))


async def test_a_resume_keeps_what_was_resolved() -> None:
    resumed = submit(["🙂"])
    resumed.resolved.bad_words_token_ids.append(pack_u32([7]))
    assert await resolver().resolve(resumed) == resumed.resolved


async def test_the_engines_limit_counts() -> None:
    assert await resolver(1).resolve(submit(["🙂"]))
    with pytest.raises(TandemError, match="bad_words are 2 words: the limit is 1"):
        await resolver(1).resolve(submit(["🙂", "🙂"]))


async def test_a_malformed_column_of_a_resume_is_refused() -> None:
    resumed = submit([])
    resumed.resolved.bad_words_token_ids.append(b"abc")
    with pytest.raises(ValueError, match="a column has 3 bytes"):
        await resolver().resolve(resumed)
