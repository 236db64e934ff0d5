"""Reference implementations (twins) of the kernels, in plain torch with float32 accumulation. Not batch-invariant.

Shapes: T tokens of the step, R requests, H query heads, G KV heads, D head size, N blocks of B tokens. Caches are
[N, B, G, D].
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

Product = Callable[[Tensor], Tensor]  # of rows with a weight


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Returns x [rows, k] @ weight [n, k].T + bias [n] as [rows, n] float32."""
    out = x.float() @ weight.float().T
    return out if bias is None else out + bias


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Returns weight [n, k], quantised symmetrically per row: (qweight [n, k] int8, scales [n] float32).

    weight is about qweight * scale, qweight from -127 to 127. A row with a NaN or infinity becomes zeros, with a scale
    that is not finite.
    """
    steps, scales = _divided(weight, 127)
    return steps.round().to(torch.int8), scales


def quantise_fp8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Returns what `quantise` does, with qweight in float8_e4m3fn (arXiv 2209.05433), from -448 to 448."""
    steps, scales = _divided(weight, 448)
    return steps.to(torch.float8_e4m3fn), scales


def _divided(weight: Tensor, largest: int) -> tuple[Tensor, Tensor]:
    """Returns (each row divided by its scale so that its largest magnitude is `largest`, scales [n]).

    A row with a scale of 0, or a scale that is not finite, becomes zeros.
    """
    wide = weight.float()
    scales = wide.abs().amax(dim=1) / largest
    steps = (wide / scales[:, None]).clamp(-largest, largest)
    return torch.where((scales > 0) & scales.isfinite(), steps.T, 0).T, scales


def activate(x: Tensor, kind: str, gated: bool, alpha: float = 1.0, limit: float = 0.0) -> Tensor:
    """Returns an activation (program.ACTIVATIONS) of x [rows, size]; gated: of the first half of x [rows, 2 * size],
    times the second (arXiv 2002.05202). In float32, rounded once.

    "clamped_silu" (gpt-oss) takes x up to `limit` for x * sigmoid(alpha * x), and the second half between -limit and
    limit, plus one."""
    first, *rest = x.float().chunk(2, dim=-1) if gated else (x.float(),)
    if kind == "clamped_silu":
        first, rest = first.clamp(max=limit), [each.clamp(-limit, limit) + 1.0 for each in rest]
        out = first * torch.sigmoid(alpha * first)
    else:
        out = _ACTIVATIONS[kind](first)
    return (out * rest[0] if gated else out).to(x.dtype)


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": lambda x: x * torch.sigmoid(x),
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu": F.gelu,
    "relu2": lambda x: F.relu(x).square(),
}


def norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, centred: bool) -> Tensor:
    """Returns the norm over x's last dimension, in x's dtype and shape, computed in float32: RMS norm (arXiv
    1910.07467), or `centred`: layer norm (arXiv 1607.06450). weight, bias: [size], or [groups, size] for x
    [rows, groups, size]; float32."""
    wide = x.float()
    if centred:
        wide = wide - wide.mean(-1, keepdim=True)
    out = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight
    return (out if bias is None else out + bias).to(x.dtype)


def add_norm(
    x: Tensor, residual: Tensor, factor: float, weight: Tensor, bias: Tensor | None, eps: float, centred: bool
) -> tuple[Tensor, Tensor]:
    """Returns (norm of the sum, sum) with sum = residual + factor * x, rounded to x's dtype before the norm.
    All [T, hidden]."""
    total = torch.add(residual, x, alpha=factor)
    return norm(total, weight, bias, eps, centred), total


def norm_rope(x: Tensor, weight: Tensor | None, eps: float, cos_sin: Tensor | None, positions: Tensor) -> Tensor:
    """Returns x after an RMS norm per head, if `weight` [D] is given, and the rotary embedding (arXiv 2104.09864).

    The embedding is in half-split form and turns the first `rotary` elements of a head. x [T, heads, D], positions [T].
    cos_sin [max positions, rotary] float32: rotary/2 cosines, then as many sines; None: nothing is turned. Computed in
    float32, rounded once at the end.
    """
    wide = x.float()
    if weight is not None:
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight
    if cos_sin is None:
        return wide.to(x.dtype)
    half = cos_sin.shape[1] // 2
    cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)
    first, second, rest = wide.tensor_split((half, 2 * half), dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1).to(x.dtype)


def write_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    """Writes key and value [T, G, D] to the cache. slot_mapping [T] int64 = block * B + offset; -1: not written."""
    placed = slot_mapping >= 0
    block_size, slots = key_cache.shape[1], slot_mapping[placed]
    blocks, offsets = slots // block_size, slots % block_size
    key_cache[blocks, offsets] = key[placed]
    value_cache[blocks, offsets] = value[placed]


def split_heads(qkv: Tensor, cache: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Returns views of qkv [T, (H + 2 G) * D]: query [T, H, D], key and value [T, G, D]. `cache` gives G and D."""
    kv_heads, head_dim = cache[1].shape[2:]
    heads = qkv.view(qkv.shape[0], -1, head_dim)
    return heads[:, : -2 * kv_heads], heads[:, -2 * kv_heads : -kv_heads], heads[:, -kv_heads:]


def rope_and_write(
    qkv: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    tables: tuple[Tensor, Tensor] | None,
    positions: Tensor,
    cache: tuple[Tensor, Tensor],
    slot_mapping: Tensor,
) -> Tensor:
    """Applies norm_rope to queries and keys of qkv [T, (H + 2 G) * D], then write_kv. Returns the queries [T, H, D].

    `norms`: the norm weights [D] of queries and of keys; None for no norm. `tables`: of the rotary embedding, likewise.
    """
    query, key, value = split_heads(qkv, cache)
    query_norm, key_norm = norms or (None, None)
    query_table, key_table = tables or (None, None)
    write_kv(norm_rope(key, key_norm, eps, key_table, positions), value, *cache, slot_mapping)
    return norm_rope(query, query_norm, eps, query_table, positions)


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Returns causal attention of each request's new tokens over all its tokens, through its block table.

    query [T, H, D]; block_tables [R, blocks] int32; query_start_loc [R + 1] and seq_lens [R] int32. Request r has the
    queries [query_start_loc[r], query_start_loc[r + 1]); its last query is at position seq_lens[r] - 1. A request of
    length 0 is padding: no key is read. Sliding window: a query at position p attends to keys p - window + 1 to p;
    with `window` 0 to all up to p. `soft_cap`: scaled scores become soft_cap * tanh(score / soft_cap); 0: they stay.
    `sinks` [H] float32: the score of one more key of each head, which has no value.
    Returns [T, H, D] in query's dtype; zeros for padding.
    """
    out = torch.zeros_like(query)
    starts, lens = query_start_loc.tolist(), seq_lens.tolist()
    block_size = key_cache.shape[1]
    for row, seq_len in enumerate(lens):
        table = block_tables[row, : -(-seq_len // block_size)].long()
        keys = key_cache[table].flatten(0, 1)[:seq_len]
        values = value_cache[table].flatten(0, 1)[:seq_len]
        span = slice(starts[row], starts[row + 1])
        if seq_len > 0:
            out[span] = _attend(query[span], keys, values, scale, window, soft_cap, sinks)
    return out


def _attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    window: int,
    soft_cap: float,
    sinks: Tensor | None,
) -> Tensor:
    """Returns one request's attention, [Q, H, D]: query [Q, H, D], the last Q positions; keys, values [S, G, D]."""
    num_queries, num_heads, head_dim = query.shape
    seq_len, num_kv_heads, _ = keys.shape
    group = num_heads // num_kv_heads
    # [G, group * Q, D]: the query heads that share a KV head become rows of one product.
    rows = query.float().view(num_queries, num_kv_heads, group, head_dim).permute(1, 2, 0, 3).flatten(1, 2)
    scores = torch.matmul(rows, keys.float().permute(1, 2, 0)) * scale
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    if num_queries > 1 or window > 0:
        allowed = torch.ones(num_queries, seq_len, dtype=torch.bool, device=query.device)
        allowed = allowed.tril(diagonal=seq_len - num_queries)
        if window > 0:
            allowed = allowed.triu(diagonal=seq_len - num_queries - window + 1)
        scores = scores.masked_fill(~allowed.repeat(group, 1), float("-inf"))
    if sinks is not None:
        own = sinks.view(num_kv_heads, group, 1).expand(-1, -1, num_queries).reshape(num_kv_heads, -1, 1)
        scores = torch.cat((scores, own), dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., :seq_len]
    mixed = torch.matmul(weights, values.float().permute(1, 0, 2))
    back = mixed.view(num_kv_heads, group, num_queries, head_dim).permute(2, 0, 1, 3)
    return back.reshape(num_queries, num_heads, head_dim).to(query.dtype)


def route(
    logits: Tensor,
    top_k: int,
    correction: Tensor | None,
    sigmoid: bool,
    renormalised: bool,
    groups: int,
    kept_groups: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Returns (experts [rows, top_k] int32, the best first, and their weights [rows, top_k] float32) of logits [rows,
    experts] float32, which may be overwritten.

    Scores are the softmax of the logits, or their sigmoid. Chosen are the experts with the largest scores, plus
    `correction` [experts] float32, the lower of equal ones. With `kept_groups` below `groups` only from so many groups:
    those with the largest sums of their two best experts (arXiv 2412.19437). Weights are the scores, `renormalised`:
    divided by their sum, times `scale`.
    """
    scores = logits.sigmoid() if sigmoid else logits.softmax(-1)
    choice = scores if correction is None else scores + correction
    if kept_groups < groups:
        by_group = choice.view(len(choice), groups, -1)
        best = by_group.topk(min(2, by_group.shape[2]), dim=-1).values.sum(-1)
        kept = best.sort(dim=-1, descending=True, stable=True).indices[:, :kept_groups]
        mask = torch.zeros_like(best, dtype=torch.bool).scatter_(1, kept, True)
        choice = by_group.masked_fill(~mask[:, :, None], float("-inf")).flatten(1)
    experts = choice.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    weights = scores.gather(1, experts)
    if renormalised:
        weights = weights / weights.sum(-1, keepdim=True)
    return experts.int(), weights * scale


def mix(
    x: Tensor,
    experts: Tensor,
    weights: Tensor,
    inner: Sequence[Product],
    activated: Callable[[Tensor], Tensor],
    down: Sequence[Product],
    added: Tensor | None = None,
) -> Tensor:
    """Returns the weighted sum of each row's experts, [rows, n] in x's dtype, `added` to it if given.

    x [rows, k]; experts and weights [rows, top_k]. An expert computes down(activated(inner(x))) of its rows.
    """
    parts = x.new_zeros(*experts.shape, x.shape[1])
    for number in sorted(set(experts.flatten().tolist())):
        places = experts == number
        rows = x[places.nonzero()[:, 0]]
        parts[places] = down[number](activated(inner[number](rows)))
    total = torch.zeros_like(x, dtype=torch.float32) if added is None else added.float()
    for slot in range(experts.shape[1]):
        total = total + weights[:, slot, None] * parts[:, slot].float()
    return total.to(x.dtype)


def mixture_bytes(pairs: int, hidden: int, inner: int, size: int, dtype: torch.dtype) -> int:
    """Returns the bytes of `mix` with a row for each pair of a token and an expert: with input or output, both sides of
    the activation, its expert and its place (Ops.mixture_bytes)."""
    return pairs * (dtype.itemsize * (hidden + inner + size) + 4 + 4)


def soft_cap(logits: Tensor, cap: float) -> None:
    """Brings logits [S, vocab] float32 between -cap and cap, in place: cap * tanh(logits / cap)."""
    logits.div_(cap).tanh_().mul_(cap)


def apply_bitmask(logits: Tensor, masks: Tensor, rows: Tensor) -> None:
    """Sets logits [S, vocab] float32 to -inf, in place, for tokens that masks [M, words] int32 exclude.

    rows [M] int64, all different: the row of logits of each mask. Token i may follow if bit i % 32 of word i // 32 is
    set; there are at least vocab bits.
    """
    bits = torch.arange(32, dtype=torch.int32, device=masks.device)
    for row, mask in zip(rows.tolist(), masks, strict=True):
        excluded = (mask[:, None] >> bits & 1 == 0).flatten()[: logits.shape[1]]
        logits[row].masked_fill_(excluded, float("-inf"))
