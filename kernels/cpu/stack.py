"""Runs all operations of a decoder in one call of the compiled library. Twin: kernels/stack.py."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.cpu.experts import CpuExperts
from kernels.cpu.library import Library
from kernels.cpu.matrix import TYPES, CpuMatrix
from kernels.interface import AttentionInputs, KvPair
from kernels.program import ACTIVATIONS, Activate, Add, Attend, Mix, Multiply, Norm, Operation, Route, Select

_KINDS: dict[type, int] = {
    kind: index for index, kind in enumerate((Multiply, Norm, Add, Attend, Activate, Select, Route, Mix))
}
_MATRIX = [("n", "<i8"), ("k", "<i8"), ("packed", "<i8"), ("scales", "<i8")]
# The memory layout of program::Operation in native/program.h.
_OPERATION = np.dtype(
    [
        ("kind", "<i8"),
        ("source", "<i8"),
        ("target", "<i8"),
        ("matrix", _MATRIX),
        ("weight", "<i8"),  # of a norm; of Attend: norm of each query head
        ("bias", "<i8"),
        ("size", "<i8"),
        ("first", "<i8"),
        ("groups", "<i8"),
        ("weight_stride", "<i8"),
        ("centred", "<i8"),
        ("adds", "<i8"),
        ("key_weight", "<i8"),
        ("query_table", "<i8"),
        ("key_table", "<i8"),
        ("sinks", "<i8"),
        ("cache", "<i8"),
        ("heads", "<i8"),
        ("kv_heads", "<i8"),
        ("head_dim", "<i8"),
        ("rotary", "<i8"),
        ("window", "<i8"),
        ("kv_group", "<i8"),
        ("activation", "<i8"),
        ("gated", "<i8"),
        ("places", "<i8"),
        ("experts", "<i8"),
        ("top_k", "<i8"),
        ("sigmoid", "<i8"),
        ("renormalised", "<i8"),
        ("route_groups", "<i8"),
        ("kept_groups", "<i8"),
        ("correction", "<i8"),
        ("inner", "<i8"),
        ("down", "<i8"),
        ("inner_bias", "<i8"),
        ("down_bias", "<i8"),
        ("eps", "<f8"),
        ("factor", "<f8"),  # of Add and Norm; of Attend: the scale of the scores; of Route: that of the weights
        ("soft_cap", "<f8"),
        ("alpha", "<f8"),
        ("limit", "<f8"),
    ]
)


class CompiledStack:
    """A Stack whose matrices are CpuMatrix, without padding along K."""

    def __init__(self, library: Library, operations: Sequence[Operation]) -> None:
        self._library = library
        self._operations = list(operations)  # keeps the tensors alive: _table has their addresses
        self._table = np.zeros(len(operations), dtype=_OPERATION)
        for place, operation in zip(self._table, self._operations, strict=True):
            place["kind"] = _KINDS[type(operation)]
            _write(place, operation)
        attends = [(index, each) for index, each in enumerate(self._operations) if isinstance(each, Attend)]
        self._attend_at = np.array([index for index, _ in attends], dtype=np.int64)
        self._layers = [each.layer for _, each in attends]
        # The first keys of the caches that _table points to. Weak: a worker frees them before it allocates others.
        self._placed: Callable[[], Tensor | None] = lambda: None

    def __call__(
        self,
        hidden: Tensor,
        positions: Tensor,
        caches: Sequence[KvPair],
        inputs: Sequence[AttentionInputs],
        logits_indices: Tensor,
    ) -> Tensor:
        first, (keys, _) = inputs[0], caches[0]
        tables = [one.block_tables for one in inputs]
        assert hidden.is_contiguous() and hidden.dtype == keys.dtype
        assert {one.stride() for one in tables} == {(tables[0].stride(0), 1)}
        addresses = [(one.slot_mapping.data_ptr(), one.block_tables.data_ptr()) for one in inputs]
        groups = np.array(addresses, dtype=np.int64)
        if keys is not self._placed():
            self._place_caches(caches)
        out = torch.empty(len(logits_indices), hidden.shape[1], dtype=hidden.dtype)
        self._library.run(
            TYPES[hidden.dtype], self._table.ctypes.data, len(self._table), hidden.shape[0], keys.shape[3],
            positions.data_ptr(), groups.ctypes.data, tables[0].stride(0), first.query_start_loc.data_ptr(),
            first.seq_lens.data_ptr(), len(first.seq_lens),
            logits_indices.data_ptr(), len(logits_indices), hidden.data_ptr(), hidden.shape[1], out.data_ptr(),
        )  # fmt: skip
        return out

    def _place_caches(self, caches: Sequence[KvPair]) -> None:
        attends = self._table[self._attend_at]
        found = [(keys.data_ptr(), values.shape[1], values.shape[3]) for keys, values in caches]
        for index, name in enumerate(("cache", "kv_heads", "head_dim")):
            attends[name] = [found[layer][index] for layer in self._layers]
        self._table[self._attend_at] = attends
        self._placed = weakref.ref(caches[0][0])


def _write(place: npt.NDArray[np.void] | np.void, operation: Operation) -> None:
    match operation:
        case Multiply(source, target, matrix, bias):
            assert isinstance(matrix, CpuMatrix) and not matrix.padding
            _set(place, source=source, target=target, matrix=matrix.operand(), bias=_address(bias))
        case Norm(source, target, weight, bias, eps, centred, first, groups, adds):
            size = weight.shape[-1]
            _set(place, source=source, target=target, weight=_address(weight), bias=_address(bias), eps=eps)
            _set(place, centred=centred, first=first, groups=groups, size=size, weight_stride=size * (weight.dim() - 1))
            _set(place, adds=adds is not None, factor=adds or 0.0)
        case Add(factor):
            _set(place, factor=factor)
        case Attend(_, heads, norms, eps, tables, scale, window, group, soft_cap, sinks):
            (query_norm, key_norm), (query_table, key_table) = norms or (None, None), tables or (None, None)
            _set(place, heads=heads, weight=_address(query_norm), key_weight=_address(key_norm), eps=eps, factor=scale)
            _set(place, query_table=_address(query_table), key_table=_address(key_table))
            _set(place, rotary=0 if query_table is None else query_table.shape[1], window=window, kv_group=group)
            _set(place, soft_cap=soft_cap, sinks=_address(sinks))
        case Activate():
            _write_form(place, operation)
        case Route(source, matrix, top_k, bias, correction, sigmoid, renormalised, groups, kept_groups, scale):
            assert isinstance(matrix, CpuMatrix) and not matrix.padding
            operand = matrix.operand()
            _set(place, source=source, matrix=operand, bias=_address(bias), experts=operand[0], top_k=top_k)
            _set(place, correction=_address(correction), sigmoid=sigmoid, renormalised=renormalised, factor=scale)
            _set(place, route_groups=groups, kept_groups=kept_groups)
        case Mix(source, inner, form, down, inner_bias, down_bias, adds):
            assert isinstance(inner, CpuExperts) and isinstance(down, CpuExperts)
            _set(place, source=source, experts=len(inner), inner=inner.operands.ctypes.data, adds=adds)
            _set(place, down=down.operands.ctypes.data, inner_bias=_address(inner_bias), down_bias=_address(down_bias))
            _write_form(place, form)
        case Select(places):
            _set(place, places=sum(1 << each for each in places))


def _write_form(place: npt.NDArray[np.void] | np.void, form: Activate) -> None:
    _set(place, activation=ACTIVATIONS.index(form.kind), gated=form.gated, alpha=form.alpha, limit=form.limit)


def _set(place: npt.NDArray[np.void] | np.void, **fields: Any) -> None:
    for name, value in fields.items():
        place[name] = value


def _address(tensor: Tensor | None) -> int:
    """Returns the address of a float32 tensor; 0: none."""
    if tensor is None:
        return 0
    assert tensor.dtype == torch.float32 and tensor.is_contiguous()
    return tensor.data_ptr()
