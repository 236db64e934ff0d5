"""JSON in pieces equals what msgspec writes of the whole value."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from services.rpc.columns import ITEM_BYTES, pack_u32
from services.shim.apis.json_pieces import (
    ID_BYTES,
    PIECE_BYTES,
    InPieces,
    WrittenColumns,
    array_pieces,
    id_pieces,
    object_pieces,
)

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def in_pieces(value: Any, path: int) -> Any:
    """Returns a value with its objects, and as `path` says its arrays, in pieces."""
    if isinstance(value, dict):
        fields = {name: in_pieces(one, path // 2 + place) for place, (name, one) in enumerate(value.items())}
        return InPieces(object_pieces(fields))
    if isinstance(value, list) and path % 2:
        return InPieces(array_pieces([msgspec.json.encode(one)] for one in value))
    return value


@given(st.dictionaries(st.text(), values, max_size=5), st.integers(0, 1000))
def test_any_object(value: dict[str, Any], path: int) -> None:
    assert b"".join(in_pieces(value, path).pieces) == msgspec.json.encode(value)


@given(st.lists(st.tuples(st.lists(st.text(), min_size=1), st.lists(st.floats(-100, 0), min_size=1)), min_size=1))
def test_columns_that_grow(parts: list[tuple[list[str], list[float]]]) -> None:
    written = WrittenColumns()
    sizes = [written.add({"tokens": texts, "logprobs": numbers}) for texts, numbers in parts]
    whole = {"tokens": [one for texts, _ in parts for one in texts], "logprobs": [one for _, n in parts for one in n]}
    text = b"".join(written.pieces())
    assert text == msgspec.json.encode(whole) == b"".join(written.pieces())
    assert abs(sum(sizes) - len(text)) <= 40 + 2 * len(parts)


def test_token_ids_in_pieces_of_bounded_size() -> None:
    for count in (0, 1, ID_BYTES // ITEM_BYTES, 3 * ID_BYTES // ITEM_BYTES + 1):
        ids = list(range(2**31, 2**31 + count))
        pieces = list(id_pieces(pack_u32(ids)))
        assert b"".join(pieces) == msgspec.json.encode(ids)
        assert max(map(len, pieces)) <= PIECE_BYTES
