from services.worker.models.description import Attention, Mlp


def test_sizes_follow_from_heads_and_gates() -> None:
    attention = Attention(heads=6, kv_heads=2, head_dim=10, scale=1.0, rope=None)
    assert (attention.query_size, attention.key_size, attention.qkv_size) == (60, 20, 100)
    assert (Mlp(7, "silu").inner_size, Mlp(7, "silu", gated=False).inner_size) == (14, 7)
