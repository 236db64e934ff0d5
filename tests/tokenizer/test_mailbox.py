"""The mailbox to a shim: merged or not, the rows of all messages fold to the same tokens, pieces and logprobs."""

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import services.rpc.mailbox
from services.rpc.columns import unpack_u32
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.rpc.mailbox import MAX_MERGED_BYTES, MERGED_TOKENS
from services.rpc.pieces import Piece, add_pieces
from services.tokenizer.mailbox import TextMailbox
from tests.fakes import SERVICE
from tests.tokenizer.parts import Row, rows_of

REASONING = 1  # a kind that has no name yet


def logprob(token_id: int) -> text_pb2.TokenLogprobs:
    return text_pb2.TokenLogprobs(sampled=text_pb2.TokenLogprob(token=str(token_id), logprob=-1.0))


def drained(mailbox: TextMailbox) -> list[text_pb2.TextBatch]:
    """Returns all messages up to the one with terminals."""
    batches = [mailbox.take().batch]
    while not batches[-1].terminals:
        batches.append(mailbox.take().batch)
    return batches


def test_tokens_and_pieces_of_one_choice_merge_into_one_row() -> None:
    mailbox = TextMailbox(3, SERVICE)
    for index, pieces in enumerate(([(0, "a")], [], [(0, "b"), (REASONING, "c")], [(REASONING, "d")])):
        mailbox.put_tokens(7, index, [index + 10], list(pieces), [])
        mailbox.put_tokens(8, index + 5, [index + 20], [], [logprob(index)])
    batch = mailbox.take().batch
    assert rows_of(batch) == [
        Row(7, 0, [10, 11, 12, 13], [(0, "ab"), (REASONING, "cd")], []),
        Row(8, 5, [20, 21, 22, 23], [], [logprob(index) for index in range(4)]),
    ]
    assert (batch.epoch, batch.piece_kinds, unpack_u32(batch.logprob_counts)) == (3, b"\x00\x01", [0, 4])
    assert mailbox.take().batch == text_pb2.TextBatch(epoch=3), "the mailbox is empty"


def test_rows_without_logprobs_and_with_content_alone_leave_their_columns_out() -> None:
    mailbox = TextMailbox(3, SERVICE)
    mailbox.put_tokens(7, 0, [1], [(0, "a")], [])
    batch = mailbox.take().batch
    assert (batch.piece_kinds, batch.logprob_counts) == (b"", b"")


def test_tokens_merge_within_a_range_only() -> None:
    """So that a reader that resumed knows all or none of a row's tokens."""
    mailbox = TextMailbox(3, SERVICE)
    for index in range(MERGED_TOKENS - 1, MERGED_TOKENS + 2):
        mailbox.put_tokens(7, index, [index], [(0, "a")], [])
    rows = rows_of(mailbox.take().batch)
    assert [(row.start_index, len(row.token_ids), row.content) for row in rows] == [
        (MERGED_TOKENS - 1, 1, "a"),
        (MERGED_TOKENS, 2, "aa"),
    ]


def test_a_large_text_counts_against_the_size_of_a_message() -> None:
    """Characters of four bytes each: the estimate is an upper bound."""
    mailbox = TextMailbox(3, SERVICE)
    text = "🙂" * (MAX_MERGED_BYTES // 16)
    for handle in range(10):
        mailbox.put_tokens(handle, 0, [1], [(0, text)], [])
    mailbox.put_terminal(text_pb2.TextTerminal(handle=0))
    batches = drained(mailbox)
    assert [len(rows_of(batch)) for batch in batches] == [4, 4, 2]
    assert max(batch.ByteSize() for batch in batches) <= MAX_MERGED_BYTES + 4 * len(text)


steps = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(1, 3),
        st.lists(st.tuples(st.integers(0, 1), st.text("ab", min_size=1, max_size=2)), max_size=2),
        st.booleans(),
    ),
    max_size=12,
)


@settings(deadline=None, derandomize=True)
@given(steps=steps)
def test_merged_and_single_messages_fold_to_the_same_answers(steps: list[Any]) -> None:
    """Each step is (choice, number of tokens, pieces, whether the reader takes a message after it)."""

    def folded(*, single: bool) -> dict[int, tuple[list[int], list[Piece], list[str]]]:
        mailbox, batches, lengths = TextMailbox(1, SERVICE), [], dict.fromkeys(range(3), 0)
        for handle, count, pieces, is_taken in steps:
            ids = list(range(lengths[handle], lengths[handle] + count))
            logprobs = [logprob(token_id) for token_id in ids] if handle == 2 else []
            mailbox.put_tokens(handle, ids[0], list(ids), list(pieces), logprobs)
            lengths[handle] += count
            if single or is_taken:
                batches.append(mailbox.take().batch)
        batches.append(mailbox.take().batch)
        answers: dict[int, tuple[list[int], list[Piece], list[str]]] = defaultdict(lambda: ([], [], []))
        for row in (row for batch in batches for row in rows_of(batch)):
            ids, pieces, names = answers[row.handle]
            assert row.start_index == len(ids)
            ids += row.token_ids
            add_pieces(pieces, row.pieces)
            names += [one.sampled.token for one in row.logprobs]
        return dict(answers)

    assert folded(single=False) == folded(single=True)


def test_tokens_wait_for_the_logprobs_of_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services.rpc.mailbox, "MAX_MERGED_BYTES", 100)
    sent = TextMailbox(3, SERVICE)
    for start in (1, 2, 3):
        columns = pb.PromptLogprobs(handle=7, start_index=start, logprobs=bytes(80))
        sent.put_prompt_logprobs(text_pb2.TextPromptLogprobs(logprobs=columns))
    sent.put_tokens(7, 0, [5], [(0, "a")], [])
    sent.put_terminal(text_pb2.TextTerminal(handle=7))
    batches = drained(sent)
    assert [[one.logprobs.start_index for one in batch.prompt_logprobs] for batch in batches] == [[1, 2], [3]]
    assert [len(rows_of(batch)) for batch in batches] == [0, 1]
