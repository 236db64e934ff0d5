"""JSON in pieces, for responses that are too large to be written in one step: each piece is made when it is needed.

The joined pieces equal what msgspec writes of the whole value.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from services.rpc.columns import ITEM_BYTES, unpack_u32

PIECE_BYTES = 64 * 1024
ID_BYTES = 4096 * ITEM_BYTES  # of a column of token ids: these become one piece
encode = msgspec.json.Encoder().encode
Pieces = Iterable[bytes]


class InPieces:
    """A value within `object_pieces` that is JSON in pieces."""

    __slots__ = ("pieces",)

    def __init__(self, pieces: Pieces) -> None:
        self.pieces = pieces


def object_pieces(fields: Mapping[str, Any]) -> Iterator[bytes]:
    """Yields the JSON of an object. Values are InPieces, or what msgspec encodes."""
    before, plain = b"{", {}
    for name, value in fields.items():
        if not isinstance(value, InPieces):
            plain[name] = value  # neighbours are written together
            continue
        if plain:
            yield before + encode(plain)[1:-1]
            before, plain = b",", {}
        yield before + encode(name) + b":"
        yield from value.pieces
        before = b","
    yield before + encode(plain)[1:] if plain else b"}" if before == b"," else b"{}"


def array_pieces(items: Iterable[Pieces]) -> Iterator[bytes]:
    """Yields the JSON of an array of values in pieces."""
    before = b"["
    for item in items:
        yield before
        yield from item
        before = b","
    yield b"]" if before == b"," else b"[]"


def id_pieces(column: bytes | bytearray | memoryview) -> Iterator[bytes]:
    """Yields the JSON of an array of token ids, from a column of little-endian u32."""
    ids = memoryview(column)
    starts = range(0, len(ids), ID_BYTES)
    return array_pieces([encode(unpack_u32(ids[start : start + ID_BYTES]))[1:-1]] for start in starts)


class WrittenColumns:
    """An object of arrays with equal names, which grow: the JSON of their items so far."""

    def __init__(self) -> None:
        self._texts: dict[str, bytearray] = {}

    def add(self, columns: Mapping[str, Sequence[Any]]) -> int:
        """Appends items, at least one, to each array. Returns by how many bytes the JSON grew."""
        size = 0
        for name, items in columns.items():
            text = self._texts.setdefault(name, bytearray())
            if text:
                text += b","
            written = encode(items)
            text += memoryview(written)[1:-1]
            size += len(written)
        return size

    def pieces(self) -> Iterator[bytes]:
        return object_pieces({name: InPieces(_array([text])) for name, text in self._texts.items()})

    def array(self, name: str) -> Iterator[bytes]:
        """Returns the pieces of one of the arrays; of an empty one, if it has no items so far."""
        return _array([self._texts.get(name, bytearray())])

    def followed_by(self, other: "WrittenColumns", names: Iterable[str]) -> Iterator[bytes]:
        """Returns the pieces of an object with these of the arrays, each with the items of `other` behind."""
        return object_pieces(
            {
                name: InPieces(_array([one._texts[name] for one in (self, other) if name in one._texts]))
                for name in names
            }
        )


def _array(texts: Iterable[bytearray]) -> Iterator[bytes]:
    """Yields an array of the items in `texts`, in pieces."""
    yield b"["
    for number, text in enumerate(filter(None, texts)):
        if number:
            yield b","
        for start in range(0, len(text), PIECE_BYTES):
            yield bytes(text[start : start + PIECE_BYTES])
    yield b"]"
