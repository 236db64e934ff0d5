"""The rows of a step with grammars: masks before sampling, places after it, and faults of single rows."""

import functools

import numpy as np
import numpy.typing as npt
import pytest
from llguidance import LLExecutor

from engine_core.row_errors import GRAMMAR
from services.grammar.matcher import Matcher, mask_words
from services.worker.grammar_rows import ComputeMasks, GrammarRows, PreparedGrammar, in_threads, one_by_one
from tests.grammar.vocabularies import END, VOCAB_SIZE, demo_tokens, ids_of

SEVEN, EIGHT = ids_of("7")[0], ids_of("8")[0]
HEALTHY = np.zeros(9, dtype=np.int8)


def rows_of(*grammars: str) -> GrammarRows:
    """Row 2i + 1 of the step has the grammar i, and handle 100 + i."""
    made = [PreparedGrammar(100 + i, Matcher(demo_tokens(), text), 0) for i, text in enumerate(grammars)]
    return GrammarRows(2 * np.arange(len(made)) + 1, made)


def masks(count: int) -> npt.NDArray[np.int32]:
    return np.full((count, mask_words(VOCAB_SIZE)), -1, dtype=np.int32)


def allowed(mask: npt.NDArray[np.int32]) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


def sampled(*token_ids: int) -> npt.NDArray[np.int64]:
    """The tokens of rows 1, 3, ...; the others have any."""
    return np.array([value for token_id in token_ids for value in (5, token_id)])


def again(rows: GrammarRows) -> GrammarRows:
    """The same requests in the next step."""
    return GrammarRows(rows.rows, rows.grammars)


@pytest.mark.parametrize("compute", [one_by_one, functools.partial(in_threads, LLExecutor(2))], ids=["one", "several"])
def test_each_row_has_its_mask(compute: ComputeMasks) -> None:
    rows, buffer = rows_of('start: "7"', 'start: "77"', 'start: "8"'), masks(4)
    rows.grammars[1].matcher.raw.consume_token(END)  # an error
    assert rows.fill(buffer, compute).tolist() == [1, 5]
    assert allowed(buffer[0]) == {SEVEN} and allowed(buffer[1]) == {EIGHT}
    assert (buffer[3] == -1).all(), "not of this step"
    assert list(rows.faults) == [3] and rows.faults[3].cause == GRAMMAR


def test_the_token_that_completes_a_grammar_is_reported_once() -> None:
    rows, buffer = rows_of('start: "7"', 'start: "88"'), masks(2)
    rows.fill(buffer, one_by_one)
    rows.advance(sampled(SEVEN, EIGHT), HEALTHY)
    assert rows.completed == [100] and not rows.faults
    following = again(rows)
    assert following.fill(buffer, one_by_one).tolist() == [3], "the complete one is not masked: its token is dropped"
    following.advance(sampled(1, EIGHT), HEALTHY)
    assert following.completed == [101] and not following.faults


def test_an_end_token_completes_a_grammar() -> None:
    rows = rows_of("start: /[0-9]+/")
    for token_id in (SEVEN, END):
        assert not rows.completed
        rows.fill(masks(1), one_by_one)
        rows.advance(sampled(token_id), HEALTHY)
    assert rows.completed == [100]


def test_a_token_that_does_not_fit_is_a_fault_of_its_row() -> None:
    rows = rows_of('start: "7" "7"', 'start: "8" "8"')
    rows.fill(masks(2), one_by_one)
    rows.advance(sampled(EIGHT, EIGHT), HEALTHY)
    assert list(rows.faults) == [1] and rows.faults[1].cause == GRAMMAR
    assert rows.faults[1].message.startswith("the grammar: ")
    assert not rows.completed
    following = again(rows)
    assert following.fill(masks(2), one_by_one).tolist() == [3] and not following.faults, "it is reported once"


def test_a_mask_without_a_token_is_a_fault_and_the_others_have_theirs() -> None:
    rows, buffer = rows_of("start: <[1029]> | <[1028]>", 'start: "8"'), masks(2)
    rows.grammars[0].matcher = Empty(demo_tokens(), 'start: "7"')
    assert rows.fill(buffer, one_by_one).tolist() == [3]
    assert allowed(buffer[0]) == {EIGHT}
    assert rows.faults[1].message == "the grammar: no token of the vocabulary may follow"
    rows.advance(sampled(1, EIGHT), HEALTHY)
    assert list(rows.faults) == [1] and rows.completed == [101]


class Empty(Matcher):
    """llguidance reports a place without a token as an error; should it ever not, the empty mask is noticed."""

    def fill_mask(self, mask: npt.NDArray[np.int32]) -> None:
        mask[:] = 0


def test_a_row_that_failed_otherwise_does_not_go_on() -> None:
    rows = rows_of("start: /[0-9]+/", "start: /[0-9]+/")
    rows.fill(masks(2), one_by_one)
    rows.advance(sampled(END, SEVEN), np.array([0, 1, 0, 0], dtype=np.int8))
    assert not rows.completed and not rows.faults
    assert again(rows).fill(masks(2), one_by_one).tolist() == [3]
    assert [one.num_tokens for one in rows.grammars] == [0, 1]
