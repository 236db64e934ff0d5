"""The dot of tests/interpreter.py has one order of summation: an element's bits depend on no shape, layout or BLAS."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.interpreter import ordered_product, replace_dot
from tests.interpreter_speed import speed_up

interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")


@triton.jit
def _dot_kernel(a_ptr, b_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows, columns, steps = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + rows[:, None] * K + steps[None, :])
    b = tl.load(b_ptr + steps[:, None] * N + columns[None, :])
    acc = tl.full([M, N], 0.5, tl.float32)
    tl.store(out_ptr + rows[:, None] * N + columns[None, :], tl.dot(a, b, acc, input_precision="ieee"))


def dot(a: Tensor, b: Tensor) -> Tensor:
    """0.5 + a @ b."""
    out = torch.empty(a.shape[0], b.shape[1])
    _dot_kernel[(1,)](a, b, out, M=a.shape[0], N=b.shape[1], K=a.shape[1])
    return out


def one_by_one(a: Tensor, b: Tensor) -> Tensor:
    """The definition, in numpy's float32 scalars."""
    out = torch.empty(a.shape[0], b.shape[1])
    for row in range(a.shape[0]):
        for column in range(b.shape[1]):
            total = np.float32(0)
            for k in range(a.shape[1]):
                total = total + a[row, k].numpy() * b[k, column].numpy()
            out[row, column] = float(total + np.float32(0.5))
    return out


@interpreted
@given(seed=st.integers(0, 10**6))
def test_a_dot_adds_one_product_after_the_other(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(4, 16, generator=generator), torch.randn(16, 4, generator=generator)
    assert torch.equal(dot(a, b), one_by_one(a, b))


@interpreted
@pytest.mark.parametrize("k", [16, 32, 64, 128])
def test_an_element_has_the_same_bits_in_every_shape(k: int) -> None:
    """Red with numpy's matmul under OPENBLAS_CORETYPE=Haswell, and others."""
    generator = torch.Generator().manual_seed(k)
    a, b = torch.randn(128, k, generator=generator), torch.randn(k, 128, generator=generator)
    whole = dot(a, b)
    for m in (1, 2, 16, 64, 128):
        for n in (1, 2, 16, 64, 128):
            assert torch.equal(dot(a[:m], b[:, :n].contiguous()), whole[:m, :n]), f"[{m}, {n}]"


def test_layouts_and_batches_change_nothing() -> None:
    source = np.random.default_rng(3)
    a, b = (source.standard_normal((2, 8, 8), dtype=np.float32) for _ in range(2))
    expected = ordered_product(a, b)
    assert np.array_equal(expected[1], ordered_product(np.asfortranarray(a[1]), np.asfortranarray(b[1])))
    np.testing.assert_allclose(expected, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-4, atol=1e-5)


@interpreted
def test_types_and_shapes_are_checked_and_equal_those_of_triton() -> None:
    for _ in range(2):
        for shape, error, message in (
            ([], TypeError, "0d block_type is forbidden"),
            ([4, 3], ValueError, "Shape element 1 must be a power of 2"),
            ([4.0], TypeError, r"Shape element 0 must have type"),
            ([1 << 21], ValueError, "exceeds triton maximum tensor numel"),
        ):
            with pytest.raises(error, match=message):
                tl.block_type(tl.int32, shape)
        block = tl.block_type(tl.pointer_type(tl.bfloat16), [tl.constexpr(4), 2])
        assert (block.numel, block.name, list(block.shape)) == (8, "<['4', '2'], pointer<bf16>>", [4, 2])
        for type_, size in (
            (block, 8),
            (tl.block_type(tl.bfloat16, [4]), 2),
            (tl.int8, 1),
            (tl.pointer_type(tl.int8), 8),
        ):
            assert triton.runtime.interpreter._get_np_dtype(type_).itemsize == size
        scalar = tl.tensor(None, tl.int32)
        assert scalar.numel.value == 1 and not list(scalar.shape)
        whole = tl.tensor(None, tl.block_type(tl.int32, [4, 2]))
        assert whole.numel.value == 8 and [size.value for size in whole.shape] == [4, 2] and whole.dtype == tl.int32


class Handle:
    """An interpreter's tensor of a type that has another name."""

    def __init__(self, name: str) -> None:
        self.dtype = type("Block", (), {"scalar": name})()


def test_a_dot_of_other_types_is_refused() -> None:
    class Builder:
        def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):  # type: ignore[no-untyped-def]
            raise AssertionError("replaced")

    replace_dot(Builder, Handle)
    with pytest.raises(TypeError, match="takes fp32 alone, not bf16, fp32"):
        Builder().create_dot(Handle("bf16"), Handle("bf16"), Handle("fp32"), None, 0)


def test_a_triton_without_this_dot_is_refused() -> None:
    class Renamed:
        def create_matmul(self) -> None: ...

    class Changed:
        def create_dot(self, a, b, d) -> None: ...  # type: ignore[no-untyped-def]

    for builder in (Renamed, Changed):
        with pytest.raises(RuntimeError, match="no InterpreterBuilder.create_dot of the known parameters"):
            replace_dot(builder, Handle)


def test_a_triton_with_other_types_is_refused() -> None:
    def changed(self, handle) -> None: ...  # type: ignore[no-untyped-def]

    core = SimpleNamespace(tensor=SimpleNamespace(__init__=changed), block_type=SimpleNamespace(__init__=changed))
    semantic = SimpleNamespace(broadcast_impl_value=changed)
    other: Any = SimpleNamespace(tl=SimpleNamespace(core=core), TritonSemantic=semantic, _get_np_dtype=changed)
    with pytest.raises(RuntimeError, match="this Triton has other parameters of _get_np_dtype, tensor, block_type"):
        speed_up(other)
