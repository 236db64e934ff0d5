"""Computes the shape of the KV cache: how many blocks fit into memory, and the resulting max_model_len."""

from dataclasses import dataclass

import torch

from engine_core.kv_groups import FULL, KvGroup, capacity_tokens, most_blocks
from engine_core.worker_messages import MAX_BLOCKS, BatchLimits
from services.process.worker_record import WorkerRecord
from services.worker.errors import ModelError
from services.worker.models.description import Description
from services.worker.models.kv_layout import KvLayout


@dataclass(frozen=True)
class KvCacheShape:
    num_blocks: int
    block_size: int
    max_model_len: int
    groups: tuple[KvGroup, ...] = (FULL,)


def block_bytes(model: Description, layout: KvLayout, block_size: int, dtype: torch.dtype) -> int:
    """Returns the bytes of one block's keys and values in the layers of one KV group.

    bf16 values count as padded to pairs of tokens, as kernels/cpu/ops.py lays them out; on a GPU too.
    """
    num_values = block_size + block_size % 2 if dtype == torch.bfloat16 else block_size
    layers = [model.layers[layout.layer_at(place)] for place in range(layout.num_places)]
    elements = sum(layer.attention.key_size for layer in layers)
    return (block_size + num_values) * elements * dtype.itemsize


def request_length(model: Description, max_model_len: int | None) -> int:
    """Returns `max_model_len`, or the model's default if it is None, in tokens.

    Raises ModelError if max_model_len is above what the model's positions allow.
    """
    if max_model_len is not None and max_model_len > model.max_length:
        raise ModelError(
            f"--max-model-len {max_model_len} is above the model's {model.max_length} positions (config.json:"
            " max_position_embeddings, with the factor of its rope)"
        )
    return max_model_len or model.default_length


def shape_kv_cache(
    model: Description,
    layout: KvLayout,
    dtype: torch.dtype,
    block_size: int,
    memory_bytes: int,
    max_model_len: int | None,
    limits: BatchLimits,
) -> KvCacheShape:
    """Returns a shape with all blocks that fit into memory_bytes, at most MAX_BLOCKS and what limits.max_num_seqs
    requests of the largest length fill, with those that windows leave behind: these stay for the prefix cache.

    If max_model_len is None, the length is reduced to what fits. Raises ModelError if an explicit one does not fit or
    is above the model's limit, or if no block fits.
    """
    wanted = request_length(model, max_model_len)
    per_block, groups = block_bytes(model, layout, block_size, dtype), layout.policies(limits.max_num_batched_tokens)
    fits = min(memory_bytes // per_block, MAX_BLOCKS)
    room, needed = capacity_tokens(groups, fits, block_size), most_blocks(groups, 0, wanted, block_size)
    if room < wanted:
        if max_model_len is not None or room == 0:
            and_budget = " or --max-num-batched-tokens" if any(group.window for group in groups) else ""
            raise ModelError(
                f"the KV cache has room for {room} tokens in {memory_bytes} bytes, but one request of"
                f" {wanted} tokens needs {needed * per_block} bytes: raise --kv-cache-memory-bytes"
                f" or lower --max-model-len{and_budget}"
            )
        wanted = room
    num_blocks = min(fits, limits.max_num_seqs * len(groups) * -(-wanted // block_size))
    return KvCacheShape(num_blocks, block_size, wanted, groups)


def check_length(model: Description, max_model_len: int | None, accepted: int) -> None:
    """Raises ModelError unless `max_model_len` and the model allow just the maximum length that the engine accepts."""
    if (max_model_len or accepted) != accepted or request_length(model, max_model_len) < accepted:
        raise ModelError(
            f"the engine accepts requests of up to {accepted} tokens, by the first worker that registered, and"
            f" --max-model-len or the model say {request_length(model, max_model_len)}: restart the engine as well"
        )


def shape_again(
    record: WorkerRecord, groups: tuple[KvGroup, ...], block_size: int, per_block: int, budget: int, free: int
) -> KvCacheShape:
    """Returns the shape of the record's KV cache: its length, which the engine has told, and its number of blocks.

    Fewer only if `free` bytes have no room for them: what fits into `budget`, at least one request of that length, so
    that each request that was accepted can run. `per_block`: bytes of a block.
    """
    cache, num_blocks = record.cache, record.num_blocks
    assert cache is not None and num_blocks is not None
    if num_blocks * per_block > free:
        num_blocks = max(cache.smallest, min(num_blocks, min(budget, free) // per_block))
    return KvCacheShape(num_blocks, block_size, cache.max_model_len, groups)
