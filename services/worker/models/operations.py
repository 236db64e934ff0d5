"""Writes the operations of a decoder from its description and its weights."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from kernels.interface import Ops
from kernels.program import (
    Activate,
    Add,
    Attend,
    Experts,
    Matrix,
    Mix,
    Multiply,
    Norm,
    Operation,
    Place,
    Route,
    Select,
    fused,
)
from services.worker.models import description as described
from services.worker.models.kv_layout import KvLayout
from services.worker.models.rope import rope_tables
from services.worker.models.tensors import (
    FINAL_NORM,
    bias,
    expert_names,
    head_norm_shapes,
    layer_name,
    parts_of,
    weight,
)
from services.worker.weights import Weights

Tables = tuple[Tensor, Tensor]


class ProgramWriter:
    """`length`: positions that a request may have. `kv_layout`: of the model's layers. Takes the tensors out of
    `weights`, layer by layer."""

    def __init__(
        self,
        model: described.Description,
        dtype: torch.dtype,
        device: torch.device,
        weights: Weights,
        ops: Ops,
        length: int,
        kv_layout: KvLayout,
    ) -> None:
        self._model = model
        self._dtype = dtype
        self._device = device
        self._weights = weights
        self._ops = ops
        self._length = length
        self._kv_layout = kv_layout
        self._tables: dict[described.Rope, Tables] = {}

    def program(self) -> list[Operation]:
        """Returns the operations between the embedding and the logits."""
        layers = enumerate(self._model.layers)
        operations = [operation for index, layer in layers for operation in self._layer(index, layer)]
        return fused([*operations, self._residual_norm(FINAL_NORM, self._model.final_norm)])

    def matrix(self, *names: str) -> Matrix:
        """Returns the named weights, without `.weight`, as one matrix."""
        parts = [self._weights.take(weight(name)) for name in names]
        return self._ops.matrix(*parts, dtype=self._dtype, device=self._device)

    def _layer(self, index: int, layer: described.Layer) -> Iterator[Operation]:
        """Yields the layer's operations. Behind the last attention only the tokens to return are computed."""
        names, add = self._model.names, Add(layer.residual_factor)
        norms = (layer_name(index, name) for name in names.norms)
        is_parallel, has_output_norms = layer.norms == "parallel", layer.norms in ("output", "sandwich")
        has_input_norms = layer.norms != "output"
        source = Place.NORMED if has_input_norms else Place.RESIDUAL
        if has_input_norms:
            yield self._residual_norm(next(norms), layer.norm)
        yield from self._attention(index, layer.attention, source)
        if index + 1 == len(self._model.layers):
            yield Select((Place.RESIDUAL, Place.ATTENTION, *([Place.NORMED] if is_parallel else [])))
        yield self._multiply(Place.ATTENTION, Place.HIDDEN, index, [names.out], layer.attention.out_bias)
        if has_output_norms:
            yield self._norm(Place.HIDDEN, next(norms), layer.norm)
        yield add
        if has_input_norms and not is_parallel:
            yield self._residual_norm(next(norms), layer.norm)
        if isinstance(layer.mlp, described.Mixture):
            yield from self._mixture(index, layer.mlp, source)
        else:
            yield from self._mlp(index, layer.mlp, source, list(names.inner), names.down)
        if has_output_norms:
            yield self._norm(Place.HIDDEN, next(norms), layer.norm)
        yield add

    def _attention(self, index: int, attention: described.Attention, source: Place) -> Iterator[Operation]:
        names, norms, rope = self._model.names, attention.norms, attention.rope
        order = _half_split(attention) if rope is not None and rope.interleaved else None
        yield self._multiply(source, Place.QKV, index, names.qkv, attention.bias, order)
        shared, eps = None, 0.0
        if norms is not None:
            pair = [self._head_norm(layer_name(index, name), norms, attention, queries=at == 0)
                    for at, name in enumerate(names.head_norms)]  # fmt: skip
            if norms.over == "head":
                shared, eps = (pair[0].weight, pair[1].weight), norms.norm.eps
            else:
                yield from pair
        tables = self._tables_of(rope) if rope is not None else None
        group = self._kv_layout.groups[index]
        window = self._kv_layout.windows[group]
        sinks = self._vector(layer_name(index, names.sinks)) if attention.sinks else None
        yield Attend(
            index, attention.heads, shared, eps, tables, attention.scale, window, group, attention.soft_cap, sinks
        )

    def _mlp(self, index: int, mlp: described.Mlp, source: Place, inner: list[str], down: str) -> Iterator[Operation]:
        yield self._multiply(source, Place.INTERMEDIATE, index, inner, mlp.bias)
        yield _activate(mlp)
        yield self._multiply(Place.ACTIVATED, Place.HIDDEN, index, [down], mlp.bias)

    def _mixture(self, index: int, mixture: described.Mixture, source: Place) -> Iterator[Operation]:
        names, router, expert = self._model.names, mixture.router, mixture.expert
        gate = layer_name(index, names.router)
        yield Route(
            source,
            self._ops.matrix(self._weights.take(weight(gate)), dtype=self._dtype, device=self._device, exact=True),
            router.top_k,
            bias=self._vector(bias(gate)) if router.bias else None,
            correction=self._exact(layer_name(index, names.correction)) if router.correction else None,
            sigmoid=router.scores == "sigmoid",
            renormalised=router.renormalised,
            groups=router.groups,
            kept_groups=router.kept_groups,
            scale=router.scale,
        )
        if mixture.shared is not None:
            yield from self._mlp(index, mixture.shared, source, *parts_of(names, names.shared))
        every = [expert_names(names, number) for number in range(mixture.count)]
        inner, down = [inner for inner, _ in every], [[down] for _, down in every]
        yield Mix(
            source,
            self._experts(index, inner),
            _activate(expert),
            self._experts(index, down),
            self._biases(index, inner) if expert.bias else None,
            self._biases(index, down) if expert.bias else None,
            adds=mixture.shared is not None,
        )

    def _experts(self, index: int, names: Sequence[Sequence[str]]) -> Experts:
        weights = [[self._weights.take(weight(layer_name(index, part))) for part in parts] for parts in names]
        return self._ops.experts(weights, self._dtype, self._device)

    def _biases(self, index: int, names: Sequence[Sequence[str]]) -> Tensor:
        rows = [torch.cat([self._vector(bias(layer_name(index, part))) for part in parts]) for parts in names]
        return torch.stack(rows)

    def _head_norm(
        self, name: str, norms: described.HeadNorms, attention: described.Attention, *, queries: bool
    ) -> Norm:
        """Returns the norm of queries or of keys within QKV."""
        heads = attention.heads if queries else attention.kv_heads
        tensors = head_norm_shapes(name, norms, heads, attention.head_dim)  # norms of heads have no bias
        found = [self._norm_weight(each, norms.norm) for each in tensors]
        whole = torch.stack(found) if len(found) > 1 else found[0]
        if norms.over == "own":
            whole = whole.view(heads, attention.head_dim)
        if attention.rope is not None and attention.rope.interleaved and norms.over != "width":
            whole = whole[..., _half_split_of(attention)]
        return Norm(
            Place.QKV,
            Place.QKV,
            whole.contiguous(),
            None,
            norms.norm.eps,
            norms.norm.centred,
            first=0 if queries else attention.query_size,
            groups=heads if norms.over == "own" else 1,
        )

    def _multiply(
        self,
        source: Place,
        target: Place,
        index: int,
        parts: Sequence[str],
        has_bias: bool,
        order: Sequence[Tensor | None] | None = None,
    ) -> Multiply:
        """`order`: the rows of each part, if they are not taken as they are."""
        names = [layer_name(index, part) for part in parts]
        rows = order or [None] * len(names)
        weights = [_taken(self._weights.take(weight(name)), own) for name, own in zip(names, rows, strict=True)]
        matrix = self._ops.matrix(*weights, dtype=self._dtype, device=self._device)
        if not has_bias:
            return Multiply(source, target, matrix)
        biases = [_taken(self._vector(bias(name)), own) for name, own in zip(names, rows, strict=True)]
        return Multiply(source, target, matrix, torch.cat(biases))

    def _residual_norm(self, name: str, norm: described.Norm) -> Norm:
        return self._norm(Place.RESIDUAL, name, norm, Place.NORMED)

    def _norm(self, source: Place, name: str, norm: described.Norm, target: Place | None = None) -> Norm:
        own_bias = self._vector(bias(name)) if norm.bias else None
        own_weight = self._norm_weight(weight(name), norm)
        return Norm(source, source if target is None else target, own_weight, own_bias, norm.eps, norm.centred)

    def _norm_weight(self, name: str, norm: described.Norm) -> Tensor:
        return self._vector(name) + 1.0 if norm.from_one else self._vector(name)

    def _vector(self, name: str) -> Tensor:
        """Returns a norm's weight or a bias as float32, rounded to the model's dtype before."""
        return self._weights.take(name).to(self._device, self._dtype).to(torch.float32, copy=True)

    def _exact(self, name: str) -> Tensor:
        """Returns a vector as float32, whatever the model's dtype."""
        return self._weights.take(name).to(self._device, torch.float32, copy=True)

    def _tables_of(self, rope: described.Rope) -> Tables:
        if rope not in self._tables:
            self._tables[rope] = rope_tables(rope, self._length, self._device)
        return self._tables[rope]


def _activate(mlp: described.Mlp) -> Activate:
    return Activate(mlp.activation, mlp.gated, mlp.alpha, mlp.limit)


def _half_split_of(attention: described.Attention) -> Tensor:
    """Returns the order of a head's elements in which pairs (0, 1), (2, 3), … are halves."""
    assert attention.rope is not None
    turned = torch.arange(2 * len(attention.rope.frequencies))
    rest = torch.arange(len(turned), attention.head_dim)
    return torch.cat((turned[0::2], turned[1::2], rest))


def _half_split(attention: described.Attention) -> list[Tensor | None]:
    """Returns the order of the rows of queries, keys and values in which rotary pairs are halves of a head.

    The scores stay the same, because queries and keys are ordered alike.
    """
    head = _half_split_of(attention)

    def every(heads: int) -> Tensor:
        return (torch.arange(heads)[:, None] * attention.head_dim + head).flatten()

    return [every(attention.heads), every(attention.kv_heads), None]


def _taken(tensor: Tensor, rows: Tensor | None) -> Tensor:
    return tensor if rows is None else tensor[rows.to(tensor.device)]
