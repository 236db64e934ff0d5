"""How many blocks of KV fit into some memory, and how long a request may become then."""

from dataclasses import dataclass

import torch

from services.worker.errors import ModelError
from services.worker.models.config import DecoderConfig


@dataclass(frozen=True)
class KvCacheShape:
    num_blocks: int
    block_size: int
    max_model_len: int


def block_bytes(config: DecoderConfig, block_size: int, dtype: torch.dtype) -> int:
    """Keys and values of one block in all layers. In bf16 the compiled kernels keep values in pairs of tokens."""
    num_values = block_size + block_size % 2 if dtype == torch.bfloat16 else block_size
    return (block_size + num_values) * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize


def request_length(config: DecoderConfig, max_model_len: int | None) -> int:
    """The most tokens of a request as asked for, or that the model knows. Raises ModelError when it knows fewer."""
    limit = config.max_position_embeddings
    if max_model_len is not None and max_model_len > limit:
        raise ModelError(f"--max-model-len {max_model_len} is above the model's max_position_embeddings, {limit}")
    return max_model_len or limit


def shape_kv_cache(
    config: DecoderConfig,
    dtype: torch.dtype,
    block_size: int,
    memory_bytes: int,
    max_model_len: int | None,
    max_num_seqs: int,
) -> KvCacheShape:
    """The number of blocks that fit, at most what max_num_seqs requests of full length could fill.

    Raises ModelError when an explicit max_model_len does not fit; without one, the length is what fits.
    """
    wanted = request_length(config, max_model_len)
    per_block = block_bytes(config, block_size, dtype)
    fits = memory_bytes // per_block
    if fits * block_size < wanted:
        if max_model_len is not None or fits == 0:
            raise ModelError(
                f"the KV cache has room for {fits * block_size} tokens in {memory_bytes} bytes, but one request of"
                f" {wanted} tokens needs {-(-wanted // block_size) * per_block} bytes: raise --kv-cache-memory-bytes"
                " or lower --max-model-len"
            )
        wanted = fits * block_size
    num_blocks = min(fits, max_num_seqs * -(-wanted // block_size))
    return KvCacheShape(num_blocks, block_size, wanted)
