"""Checks a compiled variant's matrix product on small integers: their sums are exact in any order."""

import struct
from array import array
from operator import mul
from typing import Protocol

ALIGNMENT = 64  # bytes, of a packed weight
SIZES = ((1, 3, 34), (17, 70, 70), (33, 130, 96))  # rows, n, k: one tile, several tiles, partial tiles


class Products(Protocol):
    """The functions of Library (kernels/cpu/library.py) that the check calls."""

    def packed_size(self, type_: str, n: int, k: int) -> int: ...
    def pack(self, type_: str, rows: int, first: int, count: int, n: int, k: int, packed: int) -> None: ...
    def product(
        self,
        type_: str,
        out_type: str,
        x: int,
        x_stride: int,
        rows: int,
        n: int,
        k: int,
        packed: int,
        scales: int,
        bias: int,
        out: int,
    ) -> None: ...


def products_are_exact(library: Products) -> bool:
    """Returns whether bfloat16 products of all SIZES equal those of Python integers."""
    return all(_is_exact(library, *sizes) for sizes in SIZES)


def _is_exact(library: Products, rows: int, n: int, k: int) -> bool:
    x, weight = _numbers(rows, k, 7), _numbers(n, k, 5)
    memory = array("B", bytes(library.packed_size("b", n, k) + ALIGNMENT))
    packed = _address(memory) + -_address(memory) % ALIGNMENT
    out = array("f", bytes(4 * rows * n))
    given, kept = _bfloat16(x), _bfloat16(weight)
    library.pack("b", _address(kept), 0, n, n, k, packed)
    library.product("b", "f", _address(given), k, rows, n, k, packed, 0, 0, _address(out))
    return out.tolist() == [sum(map(mul, row, column)) for row in x for column in weight]


def _numbers(rows: int, size: int, step: int) -> list[list[int]]:
    """Returns [rows][size] integers from -8 to 8; neighbouring rows differ."""
    return [[(row * step + at * (step + 6)) % 17 - 8 for at in range(size)] for row in range(rows)]


def _bfloat16(rows: list[list[int]]) -> "array[int]":
    """Returns the values as bfloat16: the upper 16 bits of each float32, row-major."""
    return array("H", [struct.unpack("<I", struct.pack("<f", value))[0] >> 16 for row in rows for value in row])


def _address(numbers: "array[int] | array[float]") -> int:
    return numbers.buffer_info()[0]
