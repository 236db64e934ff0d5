"""The cases of `tandem bench kernels`: every operation of a decoder, in a model's shapes, on any Ops.

Cold data (weights, the KV cache) exist in so many copies, used in turn, that no cache holds them: each call reads them
from memory. Warm data (activations, logits, all of a tiny model) stay in the cache where the last call left them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from kernels.interface import DRAW, AttentionInputs, Ops
from kernels.program import Activate, Matrix, Mix, Place, Route
from loadtest.kernels.limits import Work
from services.worker.models.description import Description, Mixture, Mlp

DTYPE, CPU = torch.bfloat16, torch.device("cpu")
ROWS = (1, 8, 32, 256)
REQUESTS = (1, 8, 32)
CONTEXT = 300  # tokens of a decoding request
PROMPTS = (256, 1024)
BLOCK_SIZE = 16
EPS = 1e-6
MAX_COPIES = 1024
MAX_SLOTS = 2**17
TILE_ROWS = 256  # random rows of a weight; the other rows repeat them
DRAWS = {
    "greedy": {"temperature": 0.0, "top_p": 1.0},
    "sampled": {"temperature": 0.8, "top_p": 1.0},
    "top-k 50, top-p 0.9": {"temperature": 0.8, "top_p": 0.9, "top_k": 50},
}

Run = Callable[[], object]


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder; by default Qwen3-0.6B's. `intermediate_size`: of MLPs that all tokens have, 0 for none;
    `mixture`: of one layer."""

    hidden_size: int = 1024
    intermediate_size: int = 3072
    num_heads: int = 16
    num_kv_heads: int = 8
    head_dim: int = 128
    vocab_size: int = 151936
    mixture: Mixture | None = None

    @classmethod
    def of(cls, model: Description) -> "Shape":
        """Returns the sizes of the model's first attention, MLP and mixture."""
        attention, mlps = model.layers[0].attention, [layer.mlp for layer in model.layers]
        mixture = next((mlp for mlp in mlps if isinstance(mlp, Mixture)), None)
        dense = [mlp for mlp in mlps if isinstance(mlp, Mlp)]
        if mixture is not None and mixture.shared is not None:
            dense.append(mixture.shared)
        return cls(
            model.hidden_size, dense[0].size if dense else 0, attention.heads, attention.kv_heads, attention.head_dim,
            model.vocab_size, mixture,
        )  # fmt: skip

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values in one layer."""
        return 2 * self.num_kv_heads * self.head_dim * DTYPE.itemsize

    @property
    def qkv_size(self) -> int:
        return self.query_size + 2 * self.num_kv_heads * self.head_dim


@dataclass(frozen=True)
class Case:
    """One kernel at one shape, and the `work` of one call. `make` returns calls on the given Ops, one for each copy of
    the cold data; they are timed in turn."""

    kernel: str
    shape: str
    work: Work
    make: Callable[[Ops], list[Run]]


def cases(shape: Shape, cold_bytes: int) -> Iterator[Case]:
    """Yields all cases. `cold_bytes`: the least size of all copies of cold data together: no cache holds them."""
    products = {
        "qkv": (shape.qkv_size, shape.hidden_size),
        "out": (shape.hidden_size, shape.query_size),
        "gate_up": (2 * shape.intermediate_size, shape.hidden_size),
        "down": (shape.hidden_size, shape.intermediate_size),
        "head": (shape.vocab_size, shape.hidden_size),
    }
    for name, (n, k) in products.items():
        for rows in ROWS if n and k else ():
            yield _product(name, rows, n, k, cold_bytes)
    if (mixture := shape.mixture) is not None:
        yield from (_route(mixture, rows) for rows in ROWS)
        yield from (_mix(mixture, rows, shape.hidden_size, cold_bytes) for rows in ROWS)
    for requests in REQUESTS:
        yield _decode(shape, requests, cold_bytes)
    for length in PROMPTS:
        yield _prefill(shape, length)
    for rows in ROWS:
        yield from _norms(rows, shape.hidden_size)
    for rows in ROWS:
        yield _rope(shape, rows, cold_bytes)
    for rows in ROWS if shape.intermediate_size else ():
        yield _activation(rows, shape.intermediate_size)
    for name in DRAWS:
        for rows in REQUESTS:
            yield _draw(name, rows, shape.vocab_size)


def _copies(num_bytes: int, cold_bytes: int, most: int = MAX_COPIES) -> int:
    """Returns how many copies of `num_bytes` have `cold_bytes` together; 0 (warm data) if that is more than `most`."""
    copies = -(-cold_bytes // num_bytes)
    return copies if copies <= most else 0


def _work(num_bytes: int, copies: int, warm_bytes: int, operations: int = 0) -> Work:
    """Returns the Work of a call: `num_bytes` are cold if there are copies, else warm; `warm_bytes` are warm."""
    return Work(num_bytes, warm_bytes, operations) if copies else Work(0, num_bytes + warm_bytes, operations)


def _randn(*size: int) -> Tensor:
    return torch.randn(size).to(DTYPE)


def _bytes(*sizes: int) -> int:
    return sum(sizes) * DTYPE.itemsize


def _product(name: str, rows: int, n: int, k: int, cold_bytes: int) -> Case:
    weight_bytes = _bytes(n * k)
    copies = _copies(weight_bytes, cold_bytes)
    out_type = torch.float32 if name == "head" else DTYPE

    def matrix(ops: Ops) -> Matrix:
        tile = _randn(min(n, TILE_ROWS), k)
        return ops.matrix(*(tile[: n - first] for first in range(0, n, len(tile))))

    def make(ops: Ops) -> list[Run]:
        x = _randn(rows, k)
        return [partial(matrix(ops).product, x, out_type) for _ in range(max(1, copies))]

    work = _work(weight_bytes, copies, rows * (k * DTYPE.itemsize + n * out_type.itemsize), 2 * rows * n * k)
    return Case(f"product {name}", f"{rows} x {k} x {n}", work, make)


def _route(mixture: Mixture, rows: int) -> Case:
    """Returns the case of choosing experts, without the product that gives their scores."""
    router = mixture.router

    def make(ops: Ops) -> list[Run]:
        how = Route(
            Place.NORMED, ops.matrix(_randn(mixture.count, 1)), router.top_k,
            correction=torch.randn(mixture.count) if router.correction else None,
            sigmoid=router.scores == "sigmoid", renormalised=router.renormalised,
            groups=router.groups, kept_groups=router.kept_groups, scale=router.scale,
        )  # fmt: skip
        return [partial(ops.route, torch.randn(rows, mixture.count), how)]

    work = Work(warm_bytes=rows * 4 * (mixture.count + 2 * router.top_k))
    return Case("route", f"{rows} x {mixture.count}", work, make)


def _mix(mixture: Mixture, rows: int, hidden: int, cold_bytes: int) -> Case:
    """Returns the case of the experts of `rows` tokens, chosen at random. Only those that are chosen count as bytes."""
    expert, top_k = mixture.expert, mixture.router.top_k
    expert_bytes = _bytes(hidden * (expert.inner_size + expert.size))
    copies = _copies(mixture.count * expert_bytes, cold_bytes)
    scores = torch.rand(rows, mixture.count, generator=torch.Generator().manual_seed(0))
    ids = scores.topk(top_k).indices.int()

    def make(ops: Ops) -> list[Run]:
        x, weights = _randn(rows, hidden), torch.full((rows, top_k), 1 / top_k)
        form = Activate(expert.activation, expert.gated, expert.alpha, expert.limit)
        inner, down = _randn(expert.inner_size, hidden), _randn(hidden, expert.size)
        calls: list[Run] = []
        for _ in range(max(1, copies)):
            matrices = ops.experts([[inner]] * mixture.count), ops.experts([[down]] * mixture.count)
            calls.append(partial(ops.mix, x, (ids, weights), Mix(Place.NORMED, matrices[0], form, matrices[1]), None))
        return calls

    hit = len({*ids.flatten().tolist()}) * expert_bytes
    work = _work(hit, copies, _bytes(2 * rows * hidden), rows * top_k * expert_bytes)  # 2 operations for 2 bytes
    return Case("experts", f"{rows} x {top_k} of {mixture.count}", work, make)


def _attention(shape: Shape, requests: int, queries: int, length: int, copies: int, ops: Ops) -> list[Run]:
    """Returns one call for each copy: `requests` with `queries` new tokens each, at a total length of `length`. A copy
    has blocks of its own, scattered over one cache."""
    blocks = -(-length // BLOCK_SIZE)
    cache = ops.allocate_kv_cache(
        copies * requests * blocks, BLOCK_SIZE, shape.num_kv_heads, shape.head_dim, DTYPE, CPU
    )
    for part in cache:
        part.copy_(_randn(*part.shape[1:]))  # all blocks the same
    query = _randn(requests * queries, shape.num_heads, shape.head_dim)
    starts = torch.arange(0, requests * queries + 1, queries, dtype=torch.int32)
    lens = torch.full((requests,), length, dtype=torch.int32)
    tables = torch.randperm(copies * requests * blocks, dtype=torch.int32).view(copies, requests, blocks)
    decodes = requests if queries == 1 else 0
    inputs = [AttentionInputs(torch.empty(0), table, starts, lens, decodes, queries, length) for table in tables]
    return [partial(ops.paged_attention, query, cache, each, shape.head_dim**-0.5) for each in inputs]


def _decode(shape: Shape, requests: int, cold_bytes: int) -> Case:
    cache_bytes = requests * CONTEXT * shape.token_bytes
    copies = _copies(cache_bytes, cold_bytes)
    size = requests * shape.query_size
    work = _work(cache_bytes, copies, _bytes(size, size), 4 * size * CONTEXT)
    make = partial(_attention, shape, requests, 1, CONTEXT, max(1, copies))
    return Case("attention, decode", f"{requests} requests at {CONTEXT}", work, make)


def _prefill(shape: Shape, length: int) -> Case:
    """Returns the case of one prompt. Its keys and values are warm, just written. Only scores that the mask keeps count
    as operations."""
    size = length * shape.query_size
    work = Work(0, _bytes(size, size) + length * shape.token_bytes, 4 * shape.query_size * length * (length + 1) // 2)
    return Case("attention, prefill", f"{length} tokens", work, partial(_attention, shape, 1, length, length, 1))


def _norms(rows: int, size: int) -> Iterator[Case]:
    def norm(ops: Ops) -> list[Run]:
        return [partial(ops.norm, _randn(rows, size), _randn(size).float(), None, EPS, False)]

    def add_norm(ops: Ops) -> list[Run]:
        hidden, residual, weight = _randn(rows, size), _randn(rows, size), _randn(size).float()
        return [partial(ops.add_norm, hidden, residual, 1.0, weight, None, EPS, False)]

    yield Case("norm", f"{rows} x {size}", Work(warm_bytes=_bytes(2 * rows * size, size)), norm)
    yield Case("add_norm", f"{rows} x {size}", Work(warm_bytes=_bytes(4 * rows * size, size)), add_norm)


def _rope(shape: Shape, rows: int, cold_bytes: int) -> Case:
    """Returns the case of rope for `rows` tokens, with a norm of each head, as in Qwen3. Each call writes to other
    slots of the cache."""
    copies = _copies(shape.token_bytes, cold_bytes, MAX_SLOTS)
    blocks = -(-max(rows, copies) // BLOCK_SIZE)

    def make(ops: Ops) -> list[Run]:
        cache = ops.allocate_kv_cache(blocks, BLOCK_SIZE, shape.num_kv_heads, shape.head_dim, DTYPE, CPU)
        for part in cache:
            part.zero_()  # so that the system has allocated its pages
        qkv, norms = _randn(rows, shape.qkv_size), (torch.rand(shape.head_dim), torch.rand(shape.head_dim))
        cos_sin, positions = torch.rand(CONTEXT + 1, shape.head_dim), torch.full((rows,), CONTEXT)
        slots = torch.randperm(blocks * BLOCK_SIZE)
        return [
            partial(
                ops.rope_and_write, qkv, norms, EPS, (cos_sin, cos_sin), positions, cache, slots[first : first + rows]
            )
            for first in range(0, len(slots) - rows + 1, rows)
        ]

    work = _work(rows * shape.token_bytes, copies, _bytes(rows * (shape.qkv_size + shape.query_size)))
    return Case("rope_and_write", f"{rows} x {shape.qkv_size}", work, make)


def _activation(rows: int, size: int) -> Case:
    def make(ops: Ops) -> list[Run]:
        return [partial(ops.activate, _randn(rows, 2 * size), "silu", True)]

    return Case("activate", f"{rows} x {2 * size}", Work(warm_bytes=_bytes(3 * rows * size)), make)


def _draw(name: str, rows: int, vocab: int) -> Case:
    def make(ops: Ops) -> list[Run]:
        logits, draws = 3 * torch.randn(rows, vocab), np.zeros(rows, DRAW)
        draws["seed"] = np.arange(rows)
        for field, value in DRAWS[name].items():
            draws[field] = value
        return [partial(ops.draw, logits, logits, draws)]

    return Case(f"draw, {name}", f"{rows} x {vocab}", Work(warm_bytes=4 * rows * vocab), make)
