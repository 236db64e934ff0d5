"""Integer and float columns as little-endian bytes, 4 per value.

One message carries the rows of many requests. A protobuf `repeated` field of 128k token ids takes about four times as
long to write and twice as long to read.
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
    """Returns ints in [0, 2**32) as a column of little-endian u32. Raises OverflowError beyond that range."""
    return _pack("I", values)


def unpack_u32(data: bytes | bytearray | memoryview) -> list[int]:
    """Returns the ints that pack_u32 packed. Raises ValueError when the length is not a multiple of 4 bytes."""
    return list(_unpack("I", data))


def pack_f32(values: Iterable[float]) -> bytes:
    """Returns floats as a column of little-endian float32."""
    return _pack("f", values)


def unpack_f32(data: bytes | bytearray | memoryview) -> list[float]:
    """Returns the floats that pack_f32 packed, rounded to float32. Raises ValueError as unpack_u32 does."""
    return list(_unpack("f", data))
