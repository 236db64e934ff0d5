"""Chained hashes of full blocks: equal hash means equal tokens, equal tokens before them, and equal root hash.

SHA-256, so that a client cannot make two prompts collide. The chain starts from a root hash of everything that
separates caches (the weights' version, the caller's group, the request's cache_salt): every later hash depends on it.
"""

import functools
import hashlib
import struct
from collections.abc import Callable


def root_hash(weights_version: str, cache_group: str, cache_salt: str) -> bytes:
    """Returns the hash that starts a request's chain: SHA-256 of the strings and their lengths, 32 bytes."""
    digest = hashlib.sha256()
    for part in (weights_version, cache_group, cache_salt):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.digest()


def chain_hash(hashes: list[bytes], root: bytes, token_ids: list[int], block_size: int, num_blocks: int) -> bytes:
    """Returns the hash of the first `num_blocks` blocks of `token_ids`, 32 bytes; `root` if `num_blocks` is 0.

    These blocks must be full. `hashes[i]` is the hash of the first i + 1 blocks; missing hashes are appended.
    """
    if num_blocks == 0:
        return root
    for index in range(len(hashes), num_blocks):
        tokens = _packer(block_size)(*token_ids[index * block_size : (index + 1) * block_size])
        hashes.append(hashlib.sha256((hashes[-1] if hashes else root) + tokens).digest())
    return hashes[num_blocks - 1]


@functools.cache
def _packer(block_size: int) -> Callable[..., bytes]:
    return struct.Struct(f"<{block_size}I").pack
