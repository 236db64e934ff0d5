"""Integer and float columns as little-endian bytes: packing 128k token ids takes microseconds.

One message carries the rows of many requests; `repeated` fields would take a hundred times longer
(docs/architecture.md).
"""

import sys
from array import array
from collections.abc import Iterable
from typing import Any

ITEM_BYTES = 4
_SWAP = sys.byteorder == "big"


def _pack(kind: str, values: Iterable[float]) -> bytes:
    column = array(kind, values)
    if _SWAP:
        column.byteswap()
    return column.tobytes()


def _unpack(kind: str, data: bytes | bytearray | memoryview) -> Any:
    if len(data) % ITEM_BYTES:
        raise ValueError(f"a column has {len(data)} bytes, not a multiple of {ITEM_BYTES}")
    column = array(kind)
    column.frombytes(data)
    if _SWAP:
        column.byteswap()
    return column


def pack_u32(values: Iterable[int]) -> bytes:
    """Packs ints in [0, 2**32) as little-endian u32. Raises OverflowError beyond that range."""
    return _pack("I", values)


def unpack_u32(data: bytes | bytearray | memoryview) -> list[int]:
    """Unpacks what pack_u32 packed. Raises ValueError when the length is not a multiple of 4 bytes."""
    return list(_unpack("I", data))


def pack_f32(values: Iterable[float]) -> bytes:
    """Packs floats as little-endian float32."""
    return _pack("f", values)


def unpack_f32(data: bytes | bytearray | memoryview) -> list[float]:
    """Unpacks what pack_f32 packed. Raises ValueError as unpack_u32 does."""
    return list(_unpack("f", data))
