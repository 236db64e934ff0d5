"""The reference implementations equal torch's and transformers' own functions; quantised numbers are the nearest."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.qwen3.modeling_qwen3 import apply_rotary_pos_emb

from kernels import reference
from tests.kernels import cases
from tests.kernels.gpu_cases import CPU


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return cases.randn(CPU, torch.float32, *shape, seed=seed)


@given(n=st.integers(1, 9), k=st.integers(1, 70), exponent=st.integers(-3, 3), seed=st.integers(0, 99))
def test_int8_numbers_are_the_nearest(n: int, k: int, exponent: int, seed: int) -> None:
    weight = randn(n, k, seed=seed) * 10**exponent
    numbers, scales = reference.quantise(weight)
    assert numbers.abs().amax(dim=1).eq(127).all()
    wide, scales = numbers.double() * scales.double()[:, None], scales.double()[:, None]
    cases.share_of(wide, weight.double(), 0.5001 * scales.expand(n, k))


@given(n=st.integers(1, 9), k=st.integers(1, 70), exponent=st.integers(-3, 3), seed=st.integers(0, 99))
def test_fp8_numbers_are_the_nearest(n: int, k: int, exponent: int, seed: int) -> None:
    """Four significant bits, down to 2**-6; below, steps of 2**-9."""
    weight = randn(n, k, seed=seed) * 10**exponent
    numbers, scales = reference.quantise_fp8(weight)
    assert numbers.float().abs().amax(dim=1).eq(448).all()
    wide, steps = numbers.double() * scales.double()[:, None], scales.double()[:, None]
    cases.share_of(wide, weight.double(), 1e-6 * weight.abs() + torch.maximum(weight.abs() / 16, steps / 1024))


def test_norms_and_activations_are_those_of_torch() -> None:
    x, residual, weight, bias = randn(5, 48), randn(5, 48, seed=1), randn(48, seed=2), randn(48, seed=3)
    normed, total = reference.add_norm(x, residual, 1.0, weight, None, 1e-6, False)
    torch.testing.assert_close(normed, F.rms_norm(x + residual, (48,), weight, 1e-6))
    assert torch.equal(total, x + residual)
    _, total = reference.add_norm(x, residual, 0.25, weight, None, 1e-6, False)
    torch.testing.assert_close(total, 0.25 * x + residual)
    torch.testing.assert_close(reference.norm(x, weight, bias, 1e-6, True), F.layer_norm(x, (48,), weight, bias, 1e-6))
    heads, own = x.view(5, 3, 16), weight.view(3, 16)
    expected = torch.stack([F.rms_norm(heads[:, index], (16,), own[index], 1e-6) for index in range(3)], dim=1)
    torch.testing.assert_close(reference.norm(heads, own, None, 1e-6, False), expected)
    for kind, plain in (
        ("silu", F.silu), ("gelu", F.gelu), ("gelu_tanh", partial(F.gelu, approximate="tanh")),
        ("relu2", lambda x: F.relu(x) ** 2),
    ):  # fmt: skip
        torch.testing.assert_close(reference.activate(x, kind, True), plain(x[:, :24]) * x[:, 24:])
        torch.testing.assert_close(reference.activate(x, kind, False), plain(x))


def test_the_rotary_embedding_is_that_of_transformers() -> None:
    x, positions = randn(6, 3, 16), torch.tensor([0, 1, 2, 7, 19, 3])
    angles = torch.outer(torch.arange(20.0), 1e4 ** -(torch.arange(0, 16, 2) / 16))
    cos, sin = (torch.cat((half, half), dim=-1)[positions][None] for half in (angles.cos(), angles.sin()))
    expected, _ = apply_rotary_pos_emb(x.transpose(0, 1)[None], x.transpose(0, 1)[None], cos, sin)
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    found = reference.norm_rope(x, None, 0.0, cos_sin, positions)
    torch.testing.assert_close(found, expected[0].transpose(0, 1))
    wider = torch.cat((x, 2 * x), dim=-1)
    partly = reference.norm_rope(wider, None, 0.0, cos_sin, positions)
    assert torch.equal(partly, torch.cat((found, 2 * x), dim=-1))
    assert torch.equal(reference.norm_rope(x, None, 0.0, None, positions), x)


@pytest.mark.parametrize("window", [0, 5])
def test_paged_attention_is_torch_attention_over_each_requests_tokens(window: int) -> None:
    """Prefill, a later chunk, decode and padding, in shuffled blocks."""
    block_size, kv_heads, group, head_dim = 4, 2, 3, 16
    query_lens, seq_lens = [7, 3, 1, 0], [7, 11, 9, 0]
    keys, values = randn(12, block_size, kv_heads, head_dim), randn(12, block_size, kv_heads, head_dim, seed=1)
    query, starts = randn(sum(query_lens), kv_heads * group, head_dim, seed=2), [0, 7, 10, 11, 11]
    tables = torch.randperm(12, generator=torch.Generator().manual_seed(3)).view(4, 3).int()
    out = reference.paged_attention(
        query, keys, values, tables, torch.tensor(starts).int(), torch.tensor(seq_lens).int(), 0.3, window
    )
    for row, (count, length) in enumerate(zip(query_lens, seq_lens, strict=True)):
        own = slice(starts[row], starts[row + 1])
        k, v = (cache[tables[row].long()].flatten(0, 1)[:length].transpose(0, 1) for cache in (keys, values))
        distance = torch.arange(length - count, length)[:, None] - torch.arange(length)
        seen = (distance >= 0) & ((distance < window) if window else True)
        expected = F.scaled_dot_product_attention(
            query[own].transpose(0, 1), k.repeat_interleave(group, 0), v.repeat_interleave(group, 0), seen, scale=0.3
        )
        torch.testing.assert_close(out[own], expected.transpose(0, 1))


def test_kv_is_written_to_its_slots_alone() -> None:
    caches = torch.zeros(3, 4, 2, 8), torch.zeros(3, 4, 2, 8)
    key, value, slots = randn(3, 2, 8), randn(3, 2, 8, seed=1), torch.tensor([9, -1, 2])
    reference.write_kv(key, value, *caches, slots)
    for cache, written in zip(caches, (key, value), strict=True):
        flat = cache.flatten(0, 1)
        assert torch.equal(flat[[9, 2]], written[[0, 2]])
        assert flat.any(dim=-1).any(dim=-1).nonzero().flatten().tolist() == [2, 9]
