"""A weight as eight bits each and one scale for each output, for the compiled products. Twin: reference.quantise."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import pages
from kernels.cpu.library import Library
from kernels.cpu.matrix import STEP, TYPES, rows_of


class Int8Matrix:
    """A weight [n, k]; what it is multiplied with keeps the type that the weight came in."""

    def __init__(self, library: Library, parts: Sequence[Tensor], dtype: torch.dtype) -> None:
        """`parts` [rows, k] stand beneath each other; they may be mapped files, and of any type."""
        self._library = library
        self._type, self._dtype = TYPES[dtype], dtype
        self._n, self._num_columns = sum(map(len, parts)), parts[0].shape[1]
        self._padding = self._num_columns % STEP[dtype]
        self._k = self._num_columns + self._padding
        size = library.packed_size(self._type, self._n, self._k) // dtype.itemsize
        self._packed = pages.zeros((size,), torch.int8)
        self._scales = torch.zeros(size // self._k, dtype=torch.float32)  # of each column, those of the padding too
        for first, rows in rows_of(parts, dtype):
            library.quantise(
                self._type, rows.data_ptr(), first, len(rows), self._num_columns, self._packed.data_ptr(),
                self._scales.data_ptr(),
            )  # fmt: skip

    def product(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """x [rows, k] -> [rows, n], in x's dtype or in float32."""
        assert x.dtype == self._dtype and x.shape[1] == self._num_columns and x.stride(1) == 1
        if self._padding:
            x = F.pad(x, (0, self._padding))
        out = torch.empty(x.shape[0], self._n, dtype=dtype or x.dtype)
        self._library.product_int8(
            self._type, TYPES[out.dtype], x.data_ptr(), x.stride(0), x.shape[0], self._packed.data_ptr(),
            self._scales.data_ptr(), self._n, self._k, out.data_ptr(),
        )  # fmt: skip
        return out

    def rows(self, ids: Tensor) -> Tensor:
        """The weight's rows `ids` [count] int64 -> [count, k], as near as eight bits come."""
        assert ids.dtype == torch.int64 and ids.is_contiguous()
        out = torch.empty(ids.shape[0], self._k, dtype=self._dtype)
        self._library.dequantised_rows(
            self._type, self._packed.data_ptr(), self._scales.data_ptr(), self._k, ids.data_ptr(), ids.shape[0],
            out.data_ptr(),
        )  # fmt: skip
        return out[:, : self._num_columns].contiguous()
