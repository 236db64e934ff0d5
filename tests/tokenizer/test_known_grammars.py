"""Grammars are checked in the vocabulary of the connected engine, which is read when its facts change."""

from pathlib import Path

import pytest

import demo
from services.grammar.errors import GrammarError
from services.rpc.generated import common_pb2 as pb
from services.tokenizer.known_grammars import KnownGrammars

FACTS = pb.EngineFacts(vocab_size=1030, eos_token_ids=[0, 2])


def test_a_grammar_is_checked() -> None:
    known = KnownGrammars(demo.CHECKPOINT)
    known.check('start: "a"\n', FACTS)
    with pytest.raises(GrammarError, match="nothing"):
        known.check("start: nothing\n", FACTS)


def test_the_vocabulary_is_read_once_for_the_same_facts() -> None:
    known = KnownGrammars(demo.CHECKPOINT)
    first = known.cache(FACTS)
    assert known.cache(pb.EngineFacts(vocab_size=1030, eos_token_ids=[0, 2], max_model_len=7)) is first
    other = known.cache(pb.EngineFacts(vocab_size=2048, eos_token_ids=[0, 2]))
    assert other.tokens.vocab_size == 2048
    assert known.cache(FACTS) is not other


def test_all_ids_that_end_an_answer_are_known() -> None:
    assert sorted(KnownGrammars(demo.CHECKPOINT).cache(FACTS).tokens.eos_tokens) == [0, 2]


def test_a_vocabulary_that_cannot_be_used_is_an_error_each_time(tmp_path: Path) -> None:
    known = KnownGrammars(tmp_path)
    for _ in range(2):
        with pytest.raises(GrammarError, match="does not support grammars"):
            known.check('start: "a"\n', FACTS)
    (tmp_path / "tokenizer.json").write_bytes((demo.CHECKPOINT / "tokenizer.json").read_bytes())
    with pytest.raises(GrammarError):
        known.check('start: "a"\n', FACTS)  # the file is not read again for the same facts
    known.check('start: "a"\n', pb.EngineFacts(vocab_size=1030, eos_token_ids=[2]))
