"""Chained hashes of full blocks: equal hash means equal tokens, equal tokens before them, and equal root hash.

SHA-256, so that a client cannot make two prompts collide. The chain starts from a root hash of everything that
separates caches (the weights' version, the caller's group, the request's cache_salt): every later hash depends on it.
The root is keyed, so that no hash tells anything about a prompt to a reader without the engine's key.
"""

import functools
import hashlib
import hmac
import struct
from collections.abc import Callable


def root_hash(key: bytes, weights_version: str, cache_group: str, cache_salt: str) -> bytes:
    """Returns the hash that starts a request's chain: HMAC-SHA256 (RFC 2104) with `key`, 32 bytes.

    Each string is preceded by its length in bytes, so that group "a" with salt "b" is not group "ab" without a salt.
    """
    parts = (weights_version.encode(), cache_group.encode(), cache_salt.encode())
    return hmac.digest(key, b"".join(len(part).to_bytes(8, "little") + part for part in parts), "sha256")


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
