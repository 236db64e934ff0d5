"""A weight in the layout of the compiled products, in the type that it came in."""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.cpu.library import Library

TYPES = {torch.float32: "f", torch.bfloat16: "b", torch.float16: "h"}
STEP = {torch.float32: 1, torch.bfloat16: 2, torch.float16: 1}  # elements along K that are multiplied together


class PackedMatrix:
    """A weight [n, k], kept only in the layout that products read from end to end."""

    def __init__(self, library: Library, weight: Tensor) -> None:
        self._library = library
        self._type = TYPES[weight.dtype]
        self._n, self._num_columns = weight.shape
        self._padding = self._num_columns % STEP[weight.dtype]  # a column of zeros where columns come in pairs
        weight = F.pad(weight, (0, self._padding)).contiguous()
        self._k = self._num_columns + self._padding
        self._dtype = weight.dtype
        self._packed = torch.empty(library.packed_size(self._type, self._n, self._k), dtype=torch.uint8)
        library.pack(self._type, weight.data_ptr(), self._n, self._k, self._packed.data_ptr())

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
