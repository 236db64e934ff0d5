"""The rows of a tokenizer's message, and messages whose columns contradict each other."""

from typing import Any

import pytest

from services.rpc.call import StreamBroken
from services.rpc.columns import pack_u32, unpack_u32
from services.rpc.generated import text_pb2
from services.rpc.pieces import CONTENT
from services.shim.text_rows import rows_of

OTHER = 7  # a made-up kind


def batch(**changes: Any) -> text_pb2.TextBatch:
    """A message of three rows; the middle one has neither tokens nor text."""
    fields: dict[str, Any] = {
        "handles": pack_u32([5, 6, 7]),
        "start_indices": pack_u32([0, 9, 2]),
        "counts": pack_u32([2, 0, 1]),
        "token_ids": pack_u32([1, 2, 3]),
        "piece_counts": pack_u32([1, 0, 2]),
        "pieces": ["ab", "c", "d"],
        "piece_kinds": bytes([CONTENT, CONTENT, OTHER]),
        "logprob_counts": pack_u32([0, 0, 1]),
        "logprobs": [text_pb2.TokenLogprobs(text_offset=4)],
    }
    return text_pb2.TextBatch(**fields | changes)


def test_rows() -> None:
    first, second, third = [
        (handle, start, unpack_u32(token_ids), pieces, [one.text_offset for one in logprobs])
        for handle, start, token_ids, pieces, logprobs in rows_of(batch())
    ]
    assert first == (5, 0, [1, 2], [(CONTENT, "ab")], [])
    assert second == (6, 9, [], [], [])
    assert third == (7, 2, [3], [(CONTENT, "c"), (OTHER, "d")], [4])


def test_columns_that_may_be_left_out() -> None:
    rows = list(rows_of(batch(piece_kinds=b"", logprob_counts=b"", logprobs=[])))
    assert [pieces for _, _, _, pieces, _ in rows] == [[(CONTENT, "ab")], [], [(CONTENT, "c"), (CONTENT, "d")]]
    assert [len(logprobs) for *_, logprobs in rows] == [0, 0, 0]


def test_a_message_without_rows() -> None:
    assert list(rows_of(text_pb2.TextBatch())) == []


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"token_ids": pack_u32([1, 2])}, StreamBroken),
        ({"token_ids": pack_u32([1, 2, 3, 4])}, StreamBroken),
        ({"pieces": ["a"], "piece_kinds": b""}, StreamBroken),
        ({"pieces": ["a", "b", "c", "d"], "piece_kinds": b""}, StreamBroken),
        ({"piece_kinds": b"\0"}, ValueError),
        ({"logprobs": []}, StreamBroken),
        ({"logprob_counts": b""}, StreamBroken),
        ({"start_indices": pack_u32([0, 9])}, ValueError),
        ({"counts": pack_u32([2, 1])}, ValueError),
        ({"piece_counts": pack_u32([1, 2])}, ValueError),
        ({"logprob_counts": pack_u32([1])}, ValueError),
        ({"handles": pack_u32([5, 6])}, ValueError),
        ({"handles": b"\0\0\0"}, ValueError),
        ({"counts": pack_u32([2**32 - 1, 0, 1])}, StreamBroken),
    ],
)
def test_columns_that_contradict_each_other(changes: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        list(rows_of(batch(**changes)))
