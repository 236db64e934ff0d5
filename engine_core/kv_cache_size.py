"""The size of a server's first KV cache, which later workers keep: requests were accepted by it."""

import msgspec


class KvCacheSize(msgspec.Struct, frozen=True):
    num_blocks: int
    max_model_len: int  # tokens
    smallest: int  # blocks that one request of that length fills
