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


def after_the_first(shape: KvCacheShape, record: WorkerRecord) -> KvCacheShape:
    """Returns the shape, with no longer requests than the server's first KV cache took, because the engine knows that
    length, and with no more blocks than the record allows."""
    length = shape.max_model_len if record.cache is None else min(shape.max_model_len, record.cache.max_model_len)
    num_blocks = shape.num_blocks if record.num_blocks is None else min(shape.num_blocks, record.num_blocks)
    return KvCacheShape(num_blocks, shape.block_size, length, shape.groups)
