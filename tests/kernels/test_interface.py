"""Every implementation has the methods of its protocol; DRAW has the layout of the C++ struct."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.cpu.library import load
from kernels.cpu.matrix import CpuMatrix
from kernels.cpu.ops import CpuOps
from kernels.cpu.stack import CompiledStack
from kernels.gpu.matrix import EightBitMatrix, TritonMatrix
from kernels.gpu.ops import TritonOps
from kernels.interface import DRAW, Ops, Stack
from kernels.program import Matrix
from kernels.stack import EagerStack
from kernels.torch_matrix import TorchMatrix
from kernels.torch_ops import TorchOps

NATIVE = Path(__file__).parents[2] / "kernels" / "cpu" / "native"
C_TYPES = {"double": "<f8", "int64_t": "<i8", "uint64_t": "<u8"}


def methods(kind: type) -> dict[str, Any]:
    return {name: one for name, one in inspect.getmembers(kind, callable) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("protocol", "implementation"),
    [
        *((Ops, kind) for kind in (CpuOps, TritonOps, TorchOps)),
        *((Matrix, kind) for kind in (CpuMatrix, TritonMatrix, EightBitMatrix, TorchMatrix)),
    ],
)
def test_an_implementation_has_the_methods_of_its_protocol(protocol: type, implementation: type) -> None:
    found = methods(implementation)
    for name, declared in methods(protocol).items():
        parameters = [one for one in inspect.signature(declared).parameters if one != "self"]
        actual = [one for one in inspect.signature(found[name]).parameters if one != "self"]
        assert actual == parameters, name


@pytest.mark.parametrize("implementation", [EagerStack, CompiledStack])
def test_a_stack_is_called_with_the_same_parameters(implementation: Any) -> None:
    expected = inspect.signature(Stack.__call__).parameters
    assert list(inspect.signature(implementation.__call__).parameters) == list(expected)


def test_names_tell_implementations_apart() -> None:
    """They are part of the numerics id."""
    ops = [CpuOps(load()), CpuOps(load(), int8=True), TorchOps(), TritonOps(), TritonOps(False)]
    ops += [TritonOps(quantization=name) for name in ("int8", "fp8")]
    assert len({one.name for one in ops}) == len(ops)
    assert [one.name for one in ops if not one.batch_invariant] == ["torch", "triton+torch"]


def test_a_draw_has_the_layout_of_the_compiled_kernels_struct() -> None:
    body = re.search(r"struct Draw \{(.*?)\};", (NATIVE / "sample.h").read_text(), re.DOTALL)
    assert body is not None
    fields = [
        (name.strip(), C_TYPES[kind])
        for kind, names in re.findall(r"(\w+) ([\w, ]+);", body[1])
        for name in names.split(",")
    ]
    assert DRAW.descr == fields and DRAW.itemsize == 8 * len(fields)


@pytest.mark.parametrize("ops", [CpuOps(load()), TorchOps()], ids=lambda ops: str(ops.name))
def test_a_new_kv_cache_is_zeroed(ops: Ops) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        keys, values = ops.allocate_kv_cache(5, 3, 2, 8, dtype, torch.device("cpu"))
        assert not keys.any() and not values.any() and keys.dtype == values.dtype == dtype
        assert keys.numel() == 5 * 3 * 2 * 8 <= values.numel()
