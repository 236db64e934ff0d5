"""A weight in the layout of the compiled products, in the type of what it is multiplied with."""

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import pages
from kernels.cpu.library import Library

TYPES = {torch.float32: "f", torch.bfloat16: "b", torch.float16: "h"}
STEP = {torch.float32: 1, torch.bfloat16: 2, torch.float16: 1}  # elements along K that are multiplied together
ALIGNMENT = 64  # bytes, of a packed weight
CONVERTED_ROWS = 4096  # of a weight of another type, at once


def rows_of(parts: Sequence[Tensor], dtype: torch.dtype) -> Iterator[tuple[int, Tensor]]:
    """(place, rows) of the weight that `parts` [rows, k] make beneath each other, some at a time, as `dtype`."""
    first = 0
    for part in parts:
        assert part.shape[1] == parts[0].shape[1]
        for at in range(0, len(part), CONVERTED_ROWS):
            rows = part[at : at + CONVERTED_ROWS].to(dtype).contiguous()
            yield first, rows
            first += len(rows)


class PackedMatrix:
    """A weight [n, k], kept only in the layout that products read from end to end."""

    def __init__(self, library: Library, parts: Sequence[Tensor], dtype: torch.dtype) -> None:
        """`parts` [rows, k] stand beneath each other; they may be mapped files, and of any type."""
        self._library = library
        self._type = TYPES[dtype]
        self._dtype = dtype
        self._n, self._num_columns = sum(map(len, parts)), parts[0].shape[1]
        self._padding = self._num_columns % STEP[dtype]  # a column of zeros where columns come in pairs
        self._k = self._num_columns + self._padding
        self._packed = pages.zeros((library.packed_size(self._type, self._n, self._k),), torch.uint8)
        assert self._packed.data_ptr() % ALIGNMENT == 0
        for first, rows in rows_of(parts, dtype):
            library.pack(
                self._type, rows.data_ptr(), first, len(rows), self._n, self._num_columns, self._packed.data_ptr()
            )

    def product(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """x [rows, k] -> [rows, n], in x's dtype or in float32."""
        assert x.dtype == self._dtype and x.shape[1] == self._num_columns and x.stride(1) == 1
        if self._padding:
            x = F.pad(x, (0, self._padding))
        out = torch.empty(x.shape[0], self._n, dtype=dtype or x.dtype)
        self._library.product(
            self._type, TYPES[out.dtype], x.data_ptr(), x.stride(0), x.shape[0], self._packed.data_ptr(), self._n,
            self._k, out.data_ptr(),
        )  # fmt: skip
        return out

    def rows(self, ids: Tensor) -> Tensor:
        """The weight's rows `ids` [count] int64 -> [count, k]."""
        assert ids.dtype == torch.int64 and ids.is_contiguous()
        out = torch.empty(ids.shape[0], self._k, dtype=self._dtype)
        self._library.unpack_rows(
            self._type, self._packed.data_ptr(), self._k, ids.data_ptr(), ids.shape[0], out.data_ptr()
        )
        return out[:, : self._num_columns].contiguous()
