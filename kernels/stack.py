"""Runs a decoder's operations eagerly, one after the other, on any Ops."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.interface import AttentionInputs, KvPair, Ops
from kernels.program import Activate, Add, Attend, Mix, Multiply, Norm, Operation, Place, Route, Select


class EagerStack:
    """A Stack in eager mode."""

    def __init__(self, ops: Ops, operations: Sequence[Operation]) -> None:
        self._ops = ops
        self._operations = operations

    def __call__(
        self,
        hidden: Tensor,
        positions: Tensor,
        caches: Sequence[KvPair],
        inputs: Sequence[AttentionInputs],
        logits_indices: Tensor,
    ) -> Tensor:
        run = EagerRun(self._ops, hidden, positions, caches, inputs, logits_indices)
        for operation in self._operations:
            run.do(operation)
        return run.activations[Place.NORMED]


class EagerRun:
    """One step. `activations`: what the operations so far have written."""

    def __init__(
        self,
        ops: Ops,
        hidden: Tensor,
        positions: Tensor,
        caches: Sequence[KvPair],
        inputs: Sequence[AttentionInputs],
        logits_indices: Tensor,
    ) -> None:
        self._ops = ops
        self._positions = positions
        self._caches = caches
        self._inputs = inputs
        self._wanted = logits_indices
        self.activations: dict[Place, Tensor] = {Place.RESIDUAL: hidden}
        self._chosen: tuple[Tensor, Tensor]  # by the last Route

    def do(self, operation: Operation) -> None:
        at = self.activations
        match operation:
            case Multiply(source, target, matrix, bias):
                at[target] = matrix.product(at[source], bias=bias)
            case Norm(adds=None):
                self._norm(operation)
            case Norm(target=target, weight=weight, bias=bias, eps=eps, centred=centred, adds=factor):
                assert factor is not None
                hidden, residual = at[Place.HIDDEN], at[Place.RESIDUAL]
                at[target], at[Place.RESIDUAL] = self._ops.add_norm(
                    hidden, residual, factor, weight, bias, eps, centred
                )
            case Add(factor):
                at[Place.RESIDUAL] = torch.add(at[Place.RESIDUAL], at[Place.HIDDEN], alpha=factor)
            case Attend():
                self._attend(operation)
            case Activate(kind, gated, alpha, limit):
                at[Place.ACTIVATED] = self._ops.activate(at[Place.INTERMEDIATE], kind, gated, alpha, limit)
            case Route(source, matrix, bias=bias):
                logits = matrix.product(at[source], torch.float32, bias)
                self._chosen = self._ops.route(logits, operation)
            case Mix(source, adds=adds):
                added = at[Place.HIDDEN] if adds else None
                at[Place.HIDDEN] = self._ops.mix(at[source], self._chosen, operation, added)
            case Select(places):
                for place in places:
                    at[place] = at[place][self._wanted]

    def _norm(self, norm: Norm) -> None:
        source, size = self.activations[norm.source], norm.weight.shape[-1]
        columns = slice(norm.first, norm.first + norm.groups * size)
        parts = source[:, columns].view(len(source), norm.groups, size)
        normed = self._ops.norm(parts, norm.weight, norm.bias, norm.eps, norm.centred).flatten(1)
        if normed.shape == source.shape:
            self.activations[norm.target] = normed
        else:
            assert norm.source is norm.target
            source[:, columns] = normed

    def _attend(self, attend: Attend) -> None:
        ops, inputs, cache = self._ops, self._inputs[attend.group], self._caches[attend.layer]
        query = ops.rope_and_write(
            self.activations[Place.QKV], attend.norms, attend.eps, attend.tables, self._positions, cache,
            inputs.slot_mapping,
        )  # fmt: skip
        mixed = ops.paged_attention(query, cache, inputs, attend.scale, attend.window, attend.soft_cap, attend.sinks)
        self.activations[Place.ATTENTION] = mixed.flatten(1)
