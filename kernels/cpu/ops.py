"""Ops on the compiled kernels: asserts most dtypes, shapes and strides, allocates results, passes addresses to C++.

The C++ side checks nothing.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels import pages
from kernels.cpu.experts import CpuExperts
from kernels.cpu.library import Library
from kernels.cpu.matrix import STEP, TYPES, Int8Matrix, PackedMatrix
from kernels.cpu.stack import CompiledStack
from kernels.interface import DRAW, AttentionInputs, Draws, KvPair, Stack
from kernels.program import ACTIVATIONS, Matrix, Mix, Operation, Route

THREAD_BYTES = 4 * 1024**2  # upper bound of one thread's tiles
CANDIDATE_BYTES = 32  # per token: a Candidate takes 16, in a std::vector that doubles as it grows


class CpuOps:
    """Ops of the compiled kernels. Shapes and results: kernels/reference.py. With `int8`, matrices are Int8Matrix.

    `num_threads` is set in `library`, for all its users.
    """

    batch_invariant = True

    def __init__(self, library: Library, num_threads: int = 1, int8: bool = False) -> None:
        library.set_num_threads(num_threads)
        self._library = library
        self._matrix = Int8Matrix if int8 else PackedMatrix
        self.name = f"{library.NAME}+int8" if int8 else library.NAME

    def matrix(
        self,
        *parts: Tensor,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        exact: bool = False,
    ) -> Matrix:
        kind = PackedMatrix if exact else self._matrix
        return kind(self._library, parts, dtype or parts[0].dtype)

    def experts(
        self, weights: Sequence[Sequence[Tensor]], dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> CpuExperts:
        return CpuExperts(self._matrix, self._library, weights, dtype or weights[0][0].dtype)

    def allocate_kv_cache(
        self, num_blocks: int, block_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> KvPair:
        """Returns zeroed keys and values in the layout of native/cache.h: views of one tensor that interleaves them."""
        step = STEP[dtype]
        num_keys, num_values = block_size * head_dim, -(-block_size // step) * step * head_dim
        pieces = pages.zeros((num_blocks, kv_heads, num_keys + num_values), dtype)
        keys, values = torch.split(pieces, [num_keys, num_values], dim=-1)
        head = (num_blocks, kv_heads)
        return keys.view(*head, -1, block_size, step), values.view(*head, -1, head_dim, step)

    def norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, centred: bool) -> Tensor:
        rows, size = x.shape[0], x.shape[-1]
        groups = x.shape[1] if x.dim() == 3 else 1
        assert x.stride(-1) == 1 and (x.dim() == 2 or x.stride(1) == size)
        assert weight.shape in ((size,), (groups, size)) and (bias is None or bias.shape == weight.shape)
        out = torch.empty(x.shape, dtype=x.dtype)
        self._library.norm(
            TYPES[x.dtype], x.data_ptr(), x.stride(0), _floats(weight), _floats(bias), size, groups,
            size * (weight.dim() - 1), eps, centred, rows, out.data_ptr(), groups * size,
        )  # fmt: skip
        return out

    def add_norm(
        self, x: Tensor, residual: Tensor, factor: float, weight: Tensor, bias: Tensor | None, eps: float, centred: bool
    ) -> tuple[Tensor, Tensor]:
        rows, size = x.shape
        assert x.stride(1) == 1 and weight.shape == (size,) and residual.is_contiguous()
        assert residual.shape == x.shape and residual.dtype == x.dtype
        out, total = torch.empty(x.shape, dtype=x.dtype), torch.empty(x.shape, dtype=x.dtype)
        self._library.add_norm(
            TYPES[x.dtype], x.data_ptr(), x.stride(0), residual.data_ptr(), factor, _floats(weight), _floats(bias),
            size, eps, centred, rows, out.data_ptr(), total.data_ptr(),
        )  # fmt: skip
        return out, total

    def activate(self, x: Tensor, kind: str, gated: bool, alpha: float = 1.0, limit: float = 0.0) -> Tensor:
        rows, size = x.shape[0], x.shape[1] // (2 if gated else 1)
        assert x.is_contiguous()
        out = torch.empty(rows, size, dtype=x.dtype)
        self._library.activate(
            TYPES[x.dtype], x.data_ptr(), ACTIVATIONS.index(kind), gated, alpha, limit, rows, size, out.data_ptr()
        )
        return out

    def route(self, logits: Tensor, how: Route) -> tuple[Tensor, Tensor]:
        tokens, experts = logits.shape
        assert logits.is_contiguous() and logits.dtype == torch.float32 and experts % how.groups == 0
        ids, weights = torch.empty(tokens, how.top_k, dtype=torch.int32), torch.empty(tokens, how.top_k)
        self._library.route(
            logits.data_ptr(), tokens, experts, how.top_k, how.sigmoid, how.renormalised, how.groups, how.kept_groups,
            how.scale, _floats(how.correction), ids.data_ptr(), weights.data_ptr(),
        )  # fmt: skip
        return ids, weights

    def mix(self, x: Tensor, chosen: tuple[Tensor, Tensor], how: Mix, added: Tensor | None) -> Tensor:
        (ids, weights), form = chosen, how.activate
        assert x.is_contiguous() and ids.is_contiguous() and weights.is_contiguous() and ids.dtype == torch.int32
        assert isinstance(how.inner, CpuExperts) and isinstance(how.down, CpuExperts)
        out = torch.empty_like(x) if added is None else added.clone()
        self._library.mix(
            TYPES[x.dtype], x.data_ptr(), len(x), ids.shape[1], ids.data_ptr(), weights.data_ptr(), len(how.inner),
            how.inner.operands.ctypes.data, how.down.operands.ctypes.data, _floats(how.inner_bias),
            _floats(how.down_bias), ACTIVATIONS.index(form.kind), form.gated, form.alpha, form.limit,
            added is not None, out.data_ptr(),
        )  # fmt: skip
        return out

    def rope_and_write(
        self,
        qkv: Tensor,
        norms: tuple[Tensor, Tensor] | None,
        eps: float,
        tables: tuple[Tensor, Tensor] | None,
        positions: Tensor,
        cache: KvPair,
        slot_mapping: Tensor,
    ) -> Tensor:
        keys, values = cache
        kv_heads, block_size, head_dim = values.shape[1], keys.shape[3], values.shape[3]
        tokens, heads = qkv.shape[0], qkv.shape[1] // head_dim - 2 * kv_heads
        assert qkv.is_contiguous() and qkv.dtype == keys.dtype
        assert positions.dtype == slot_mapping.dtype == torch.int64
        query = torch.empty(tokens, heads, head_dim, dtype=qkv.dtype)
        (query_norm, key_norm), (query_table, key_table) = norms or (None, None), tables or (None, None)
        rotary = 0 if query_table is None else query_table.shape[1]
        self._library.rope_and_write(
            TYPES[qkv.dtype], qkv.data_ptr(), tokens, heads, _floats(query_norm), _floats(key_norm), eps,
            _floats(query_table), _floats(key_table), rotary, positions.data_ptr(), slot_mapping.data_ptr(),
            keys.data_ptr(), kv_heads, head_dim, block_size, query.data_ptr(),
        )  # fmt: skip
        return query

    def paged_attention(
        self,
        query: Tensor,
        cache: KvPair,
        inputs: AttentionInputs,
        scale: float,
        window: int = 0,
        soft_cap: float = 0.0,
        sinks: Tensor | None = None,
    ) -> Tensor:
        keys, values = cache
        kv_heads, block_size, head_dim = values.shape[1], keys.shape[3], values.shape[3]
        tables, starts, lens = inputs.block_tables, inputs.query_start_loc, inputs.seq_lens
        assert query.is_contiguous() and query.dtype == keys.dtype and tables.stride(1) == 1
        assert tables.dtype == starts.dtype == lens.dtype == torch.int32
        out = torch.empty_like(query)
        self._library.paged_attention(
            TYPES[query.dtype], query.data_ptr(), keys.data_ptr(), kv_heads, head_dim, block_size,
            tables.data_ptr(), tables.stride(0), starts.data_ptr(), lens.data_ptr(), lens.shape[0], query.shape[1],
            scale, window, soft_cap, _floats(sinks), out.data_ptr(),
        )  # fmt: skip
        return out

    def stack(self, operations: Sequence[Operation]) -> Stack:
        return CompiledStack(self._library, operations)

    def draw(self, logits: Tensor, raw: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        rows, vocab = logits.shape
        assert logits.is_contiguous() and raw.is_contiguous() and logits.dtype == raw.dtype == torch.float32
        assert raw.shape == logits.shape and draws.shape == (rows,) and draws.dtype == DRAW and draws.flags.c_contiguous
        ids, healthy = torch.empty(rows, dtype=torch.int64), torch.empty(rows, dtype=torch.bool)
        self._library.draw(
            logits.data_ptr(), raw.data_ptr(), rows, vocab, draws.ctypes.data, ids.data_ptr(), healthy.data_ptr()
        )
        return ids, healthy

    def soft_cap(self, logits: Tensor, cap: float) -> None:
        assert logits.is_contiguous() and logits.dtype == torch.float32
        rows, vocab = logits.shape
        self._library.soft_cap(logits.data_ptr(), rows, vocab, cap)

    def apply_bitmask(self, logits: Tensor, masks: Tensor, rows: Tensor) -> None:
        vocab, words = logits.shape[1], masks.shape[1]
        assert logits.is_contiguous() and masks.is_contiguous() and rows.is_contiguous() and words * 32 >= vocab
        assert (logits.dtype, masks.dtype, rows.dtype) == (torch.float32, torch.int32, torch.int64)
        assert rows.shape == (len(masks),)
        self._library.apply_bitmask(logits.data_ptr(), vocab, masks.data_ptr(), words, rows.data_ptr(), len(rows))

    def kernel_nanoseconds(self) -> int:
        return self._library.nanoseconds()

    def scratch_bytes(
        self, tokens: int, width: int, heads: int, kv_heads: int, head_dim: int, length: int, dtype: torch.dtype
    ) -> int:
        """Returns the bytes of all threads' tiles, an upper bound."""
        return self._library.num_threads() * THREAD_BYTES

    def mixture_bytes(self, pairs: int, hidden: int, inner: int, size: int, dtype: torch.dtype) -> int:
        return self._library.mixture_bytes(TYPES[dtype], pairs, hidden, inner, size)

    def draw_scratch_bytes(self, rows: int, vocab: int) -> int:
        """Returns the bytes of the candidates that all threads hold (native/sample.h), an upper bound."""
        return self._library.num_threads() * vocab * CANDIDATE_BYTES


def _floats(tensor: Tensor | None) -> int:
    """Returns the address of a float32 tensor; 0: none."""
    if tensor is None:
        return 0
    assert tensor.dtype == torch.float32 and tensor.is_contiguous()
    return tensor.data_ptr()
