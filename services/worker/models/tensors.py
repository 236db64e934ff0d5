"""The names and shapes of a decoder's weights in a checkpoint."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping

from services.worker.models.description import Attention, Description, HeadNorms, Layer, Mixture, Mlp, Names, Norm

EMBEDDING, FINAL_NORM, HEAD = "model.embed_tokens", "model.norm", "lm_head"
MLP = "mlp."
Shape = tuple[int, ...]


def layer_name(index: int, part: str) -> str:
    return f"model.layers.{index}.{part}"


def weight(name: str) -> str:
    return f"{name}.weight"


def bias(name: str) -> str:
    return f"{name}.bias"


def parameter_shapes(description: Description) -> dict[str, Shape]:
    """Returns name -> shape of every tensor of the decoder; matrices are [outputs, inputs]."""
    shapes = _outer_shapes(description)
    for index, layer in enumerate(description.layers):
        shapes |= {layer_name(index, part): shape for part, shape in _layer_shapes(description, layer)}
    return shapes


def _outer_shapes(description: Description) -> dict[str, Shape]:
    """Returns the tensors outside the layers."""
    table = description.vocab_size, description.hidden_size
    shapes: dict[str, Shape] = {weight(EMBEDDING): table}
    if not description.tied:
        shapes[weight(HEAD)] = table
    return shapes | _norm_shapes(FINAL_NORM, description.final_norm, description.hidden_size)


def num_weight_bytes(description: Description, itemsize: int, matrix_itemsize: int) -> int:
    """Returns the bytes of a decoder's weights: `matrix_itemsize` per element of matrices, `itemsize` of an untied
    embedding and of routers, which are never quantised, and 4 per element of norms and biases. Scales and padding are
    not counted."""
    plain = [weight(EMBEDDING)] * (not description.tied) + [weight(description.names.router)]

    def size(shapes: Mapping[str, Shape]) -> int:
        return sum(
            math.prod(shape) * (itemsize if name in plain else matrix_itemsize if _is_matrix(name, shape) else 4)
            for name, shape in shapes.items()
        )

    layers = Counter(description.layers)  # most are alike, and a layer may have a tensor for each head
    return size(_outer_shapes(description)) + sum(
        count * size(dict(_layer_shapes(description, layer))) for layer, count in layers.items()
    )


def _is_matrix(name: str, shape: Shape) -> bool:
    return len(shape) == 2 and "norm" not in name


def expert_names(names: Names, number: int) -> tuple[list[str], str]:
    """Returns the names of an expert's matrices before and after the activation."""
    return parts_of(names, names.expert.format(number))


def parts_of(names: Names, beginning: str) -> tuple[list[str], str]:
    """Returns the names of an MLP's matrices before and after the activation, behind `beginning` instead of `mlp.`."""
    return [beginning + name.removeprefix(MLP) for name in names.inner], beginning + names.down.removeprefix(MLP)


def _layer_shapes(description: Description, layer: Layer) -> Iterator[tuple[str, Shape]]:
    names, hidden = description.names, description.hidden_size
    yield from _attention_shapes(description, layer.attention)
    if isinstance(layer.mlp, Mixture):
        yield from _mixture_shapes(description, layer.mlp)
    else:
        yield from _mlp_shapes(description, layer.mlp, list(names.inner), names.down)
    for name in names.norms:
        yield from _norm_shapes(name, layer.norm, hidden).items()


def _attention_shapes(description: Description, attention: Attention) -> Iterator[tuple[str, Shape]]:
    names, hidden = description.names, description.hidden_size
    parts = (attention.query_size, attention.key_size, attention.key_size)
    sizes = parts if len(names.qkv) > 1 else (attention.qkv_size,)
    for name, size in zip(names.qkv, sizes, strict=True):
        yield from _matrix_shapes(name, size, hidden, attention.bias)
    yield from _matrix_shapes(names.out, hidden, attention.query_size, attention.out_bias)
    if attention.sinks:
        yield names.sinks, (attention.heads,)
    if attention.norms is not None:
        for name, heads in zip(names.head_norms, (attention.heads, attention.kv_heads), strict=True):
            yield from head_norm_shapes(name, attention.norms, heads, attention.head_dim).items()


def head_norm_shapes(name: str, norms: HeadNorms, heads: int, head_dim: int) -> dict[str, Shape]:
    """Returns the tensors of the norm of queries, or of keys: one of all heads, or one for each."""
    if norms.over == "own" and "{}" in name:
        every = [_norm_shapes(name.format(head), norms.norm, head_dim) for head in range(heads)]
        return {one: shape for shapes in every for one, shape in shapes.items()}
    shape = {"head": (head_dim,), "own": (heads, head_dim), "width": (heads * head_dim,)}[norms.over]
    return _norm_shapes(name, norms.norm, *shape)


def _mixture_shapes(description: Description, mixture: Mixture) -> Iterator[tuple[str, Shape]]:
    names, router = description.names, mixture.router
    yield from _matrix_shapes(names.router, mixture.count, description.hidden_size, router.bias)
    if router.correction:
        yield names.correction, (mixture.count,)
    for number in range(mixture.count):
        yield from _mlp_shapes(description, mixture.expert, *expert_names(names, number))
    if mixture.shared is not None:
        yield from _mlp_shapes(description, mixture.shared, *parts_of(names, names.shared))


def _mlp_shapes(description: Description, mlp: Mlp, inner: list[str], down: str) -> Iterator[tuple[str, Shape]]:
    for name in inner:
        yield from _matrix_shapes(name, mlp.inner_size // len(inner), description.hidden_size, mlp.bias)
    yield from _matrix_shapes(down, description.hidden_size, mlp.size, mlp.bias)


def _matrix_shapes(name: str, outputs: int, inputs: int, has_bias: bool) -> Iterator[tuple[str, Shape]]:
    yield weight(name), (outputs, inputs)
    if has_bias:
        yield bias(name), (outputs,)


def _norm_shapes(name: str, norm: Norm, *shape: int) -> dict[str, Shape]:
    return {weight(name): shape} | ({bias(name): shape} if norm.bias else {})
