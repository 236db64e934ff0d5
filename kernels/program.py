"""What a decoder computes between embedding and logits, as a list of operations on a step's activations.

kernels/stack.py runs such a list operation by operation, kernels/cpu/stack.py in one call. A family of models is
another list, not another kernel.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Protocol

import torch
from torch import Tensor


class Matrix(Protocol):
    """A weight [n, k], n outputs and k inputs, in the layout and dtype that its Ops multiplies with."""

    def product(self, x: Tensor, dtype: torch.dtype | None = None, bias: Tensor | None = None) -> Tensor:
        """Returns x [rows, k] @ weight.T + bias [n] float32 as [rows, n] of `dtype`: float32, or None for x's."""

    def row_classes(self, most: int) -> Sequence[int]:
        """Returns row counts up to `most`, ascending: one for each kernel variant that products launch. A kernel that
        is compiled at its first use has been compiled once products have run with each."""

    def rows(self, ids: Tensor) -> Tensor:
        """Returns the weight's rows `ids` [count] int64 as [count, k], in the activations' dtype (embedding lookup)."""


class Experts(Protocol):
    """The weights [n, k] of all experts of a layer, in the layout and dtype that their Ops multiplies with."""

    def __len__(self) -> int: ...
    def row_classes(self, most: int, top_k: int) -> Sequence[int]:
        """Returns what Matrix.row_classes does, for rows that have `top_k` experts each."""


class Place(IntEnum):
    """An activation of a step: a row for each token. Its width is that of what was written last.

    The values are those of native/program.h.
    """

    RESIDUAL = 0  # at first the embeddings
    HIDDEN = 1  # what is to be added to it
    NORMED = 2
    QKV = 3  # [(heads + 2 * kv_heads) * head_dim]: queries, keys, values
    ATTENTION = 4  # [heads * head_dim]: attention's output
    INTERMEDIATE = 5  # of the MLP; gated: [2 * size], gate and up
    ACTIVATED = 6


ACTIVATIONS = ("silu", "gelu_tanh", "gelu", "relu2", "clamped_silu")  # in the order of native/activation.h


@dataclass(frozen=True)
class Multiply:
    """target = source @ matrix.T + bias. The sum is rounded once."""

    source: Place
    target: Place
    matrix: Matrix
    bias: Tensor | None = None  # [n] float32


@dataclass(frozen=True)
class Norm:
    """target = norm of parts of the source: `groups` parts of weight.shape[-1] columns each, one behind the other from
    column `first` on. Other columns stay. In place if both are the same.

    RMS norm (arXiv 1910.07467); `centred`: layer norm (arXiv 1607.06450). With `adds`, first RESIDUAL += adds * HIDDEN,
    rounded, and the source is RESIDUAL.
    """

    source: Place
    target: Place
    weight: Tensor  # [size] for all groups, or [groups, size]; float32
    bias: Tensor | None  # as weight
    eps: float
    centred: bool = False
    first: int = 0
    groups: int = 1
    adds: float | None = None


@dataclass(frozen=True)
class Add:
    """RESIDUAL += factor * HIDDEN, rounded once."""

    factor: float = 1.0


@dataclass(frozen=True)
class Attend:
    """ATTENTION = attention of QKV over the KV cache of layer `layer`, after its keys and values are written there.

    `group`: the layer's KV group; its block tables say where. `window`: a query attends to so many keys, its own
    included; 0: to all up to its own. `soft_cap`: scores become soft_cap * tanh(score / soft_cap); 0: they stay.
    `sinks` [heads] float32: the score of one more key of each head, which has no value (arXiv 2309.17453).
    """

    layer: int
    heads: int
    norms: tuple[Tensor, Tensor] | None  # RMS norm of each head: weights [head_dim] float32 of queries and of keys
    eps: float
    tables: tuple[Tensor, Tensor] | None  # rope of queries and of keys, see reference.norm_rope; None: no positions
    scale: float  # of the scores
    window: int = 0
    group: int = 0
    soft_cap: float = 0.0
    sinks: Tensor | None = None


@dataclass(frozen=True)
class Activate:
    """ACTIVATED = activation of INTERMEDIATE; gated: of its first half, times the second."""

    kind: str  # one of ACTIVATIONS
    gated: bool
    alpha: float = 1.0  # of clamped_silu, which is always gated: see reference.activate
    limit: float = 0.0


@dataclass(frozen=True)
class Route:
    """Chooses `top_k` experts for each row of the source, and the weight of each: see reference.route. The next Mix
    uses them."""

    source: Place
    matrix: Matrix  # [experts, k]: its product, in float32, is the logits
    top_k: int
    bias: Tensor | None = None  # of the logits [experts] float32
    correction: Tensor | None = None  # [experts] float32: added to the scores for the choice alone
    sigmoid: bool = False  # scores are a sigmoid of the logits, not their softmax
    renormalised: bool = True  # a row's weights are divided by their sum
    groups: int = 1  # of experts, of equal size; experts are chosen from the best `kept_groups`
    kept_groups: int = 1
    scale: float = 1.0  # of the weights


@dataclass(frozen=True)
class Mix:
    """HIDDEN = the sum of the MLPs of each row's experts, times their weights, in the order of the choice; `adds`: of
    that and HIDDEN. The sum is in float32, rounded once."""

    source: Place
    inner: Experts  # the first matrix of each; gated: gate and up
    activate: Activate
    down: Experts
    inner_bias: Tensor | None = None  # [experts, n] float32
    down_bias: Tensor | None = None
    adds: bool = False


@dataclass(frozen=True)
class Select:
    """Keeps of these places only the rows of the tokens to return (logits_indices). At most once in a program."""

    places: tuple[Place, ...]


Operation = Multiply | Norm | Add | Attend | Activate | Select | Route | Mix


def fused(operations: Sequence[Operation]) -> list[Operation]:
    """Returns the same program with one operation for each Add and the norm of its sum."""
    return list(_fused(operations))


def _fused(operations: Sequence[Operation]) -> Iterator[Operation]:
    waiting: Add | None = None
    for operation in operations:
        if waiting is not None:
            if isinstance(operation, Norm) and operation.source is Place.RESIDUAL and operation.adds is None:
                yield replace(operation, adds=waiting.factor)
                waiting = None
                continue
            yield waiting
            waiting = None
        if isinstance(operation, Add):
            waiting = operation
        else:
            yield operation
    if waiting is not None:
        yield waiting
