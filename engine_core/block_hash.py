"""Chained hashes of full blocks: equal hash means equal tokens, equal everything before them, equal extra keys.

SHA-256, so that a client cannot make two prompts collide. The chain starts from a root that holds what separates
caches (the weights' version, the request's cache_salt), so each later hash depends on it.
"""

import hashlib
import struct


def root_hash(weights_version: str, cache_salt: str) -> bytes:
    """What the chain of a request starts from, 32 bytes."""
    digest = hashlib.sha256()
    for part in (weights_version, cache_salt):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.digest()


def extend_block_hashes(hashes: list[bytes], root: bytes, token_ids: list[int], block_size: int) -> None:
    """Appends the hashes of the full blocks of `token_ids` that `hashes` does not have yet."""
    pack = struct.Struct(f"<{block_size}I").pack
    for index in range(len(hashes), len(token_ids) // block_size):
        tokens = pack(*token_ids[index * block_size : (index + 1) * block_size])
        parent = hashes[-1] if hashes else root
        hashes.append(hashlib.sha256(parent + tokens).digest())
