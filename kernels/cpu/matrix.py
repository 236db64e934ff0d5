"""Weights in the packed layouts that the compiled matrix products read (native/pack.h, native/linear_int8.h)."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import pages
from kernels.cpu.library import Library
from kernels.weight_parts import rows_of

TYPES = {torch.float32: "f", torch.bfloat16: "b", torch.float16: "h"}
STEP = {torch.float32: 1, torch.bfloat16: 2, torch.float16: 1}  # elements along K in one operand lane (simd::STEP)
ALIGNMENT = 64  # bytes, of a packed weight


class CpuMatrix(ABC):
    """A Matrix of n outputs and k inputs, packed so that the compiled product reads it sequentially."""

    def __init__(
        self, library: Library, parts: Sequence[Tensor], dtype: torch.dtype, storage: Tensor | None = None
    ) -> None:
        """`parts` [rows, k] are concatenated along rows; they may be memory-mapped and of any dtype.

        `dtype`: of the activations that the weight is multiplied with. `storage` [num_bytes] uint8, zeroed: for the
        packed weight.
        """
        self._library = library
        self._type = TYPES[dtype]
        self._dtype = dtype
        self._n, self._num_columns = sum(map(len, parts)), parts[0].shape[1]
        self.padding = self._num_columns % STEP[dtype]  # bfloat16 takes K in pairs: 1 zero column if k is odd
        self._k = self._num_columns + self.padding
        self._packed = (
            pages.zeros((self.num_bytes(library, parts, dtype),), torch.uint8) if storage is None else storage
        )
        self._scales = self._pack(parts)
        assert self._packed.data_ptr() % ALIGNMENT == 0

    @classmethod
    def num_bytes(cls, library: Library, parts: Sequence[Tensor], dtype: torch.dtype) -> int:
        """Returns the size of the packed weight."""
        columns = parts[0].shape[1]
        rows, padded = sum(map(len, parts)), columns + columns % STEP[dtype]
        return library.packed_size(TYPES[dtype], rows, padded) // dtype.itemsize * cls.itemsize(dtype)

    @staticmethod
    @abstractmethod
    def itemsize(dtype: torch.dtype) -> int:
        """Returns the bytes of an element of the packed weight."""

    @abstractmethod
    def _pack(self, parts: Sequence[Tensor]) -> Tensor | None:
        """Packs the weight. Returns one float32 scale per output if it is quantised, else None."""

    def operand(self) -> tuple[int, int, int, int]:
        """Returns n, k (with padding) and the addresses of weight and scales (0: none), in native/operand.h's order."""
        return self._n, self._k, self._packed.data_ptr(), 0 if self._scales is None else self._scales.data_ptr()

    def product(self, x: Tensor, dtype: torch.dtype | None = None, bias: Tensor | None = None) -> Tensor:
        """Returns x [rows, k] @ weight.T + bias [n] float32 as [rows, n] of `dtype`: float32, or None for x's."""
        assert x.dtype == self._dtype and x.shape[1] == self._num_columns and x.stride(1) == 1
        assert bias is None or (bias.dtype == torch.float32 and bias.shape == (self._n,) and bias.is_contiguous())
        if self.padding:
            x = F.pad(x, (0, self.padding))
        out = torch.empty(x.shape[0], self._n, dtype=dtype or x.dtype)
        self._library.product(
            self._type, TYPES[out.dtype], x.data_ptr(), x.stride(0), x.shape[0], *self.operand(),
            0 if bias is None else bias.data_ptr(), out.data_ptr(),
        )  # fmt: skip
        return out

    def row_classes(self, most: int) -> Sequence[int]:
        return (1,)

    def rows(self, ids: Tensor) -> Tensor:
        """Returns the weight's rows `ids` [count] int64 as [count, k] in the activations' dtype.

        An int8 weight's rows are dequantised.
        """
        assert ids.dtype == torch.int64 and ids.is_contiguous()
        out = torch.empty(ids.shape[0], self._k, dtype=self._dtype)
        self._library.unpack_rows(self._type, *self.operand(), ids.data_ptr(), ids.shape[0], out.data_ptr())
        return out[:, : self._num_columns].contiguous()


class PackedMatrix(CpuMatrix):
    """A CpuMatrix that is not quantised: its elements have the activations' dtype."""

    @staticmethod
    def itemsize(dtype: torch.dtype) -> int:
        return dtype.itemsize

    def _pack(self, parts: Sequence[Tensor]) -> None:
        for first, rows in rows_of(parts, self._dtype):
            self._library.pack(
                self._type, rows.data_ptr(), first, len(rows), self._n, self._num_columns, self._packed.data_ptr()
            )


class Int8Matrix(CpuMatrix):
    """A CpuMatrix of int8, symmetric, with one float32 scale per output. Twin: reference.quantise."""

    @staticmethod
    def itemsize(dtype: torch.dtype) -> int:
        return 1

    def _pack(self, parts: Sequence[Tensor]) -> Tensor:
        scales = torch.zeros(len(self._packed) // self._k, dtype=torch.float32)  # n, rounded up to whole panels
        for first, rows in rows_of(parts, self._dtype):
            self._library.quantise(
                self._type, rows.data_ptr(), first, len(rows), self._num_columns, self._packed.data_ptr(),
                scales.data_ptr(),
            )  # fmt: skip
        return scales
