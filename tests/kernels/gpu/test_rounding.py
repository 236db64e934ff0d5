"""Rounding on the host: its numbers, and that no kernel calls it, which the interpreter allows and the compiler not."""

import ast
from pathlib import Path

import triton

from kernels.gpu import rounding

NAMES = {"cdiv", "next_power_of_2"}


def test_the_numbers_are_those_of_triton() -> None:
    for count in range(1, 300):
        assert rounding.next_power_of_2(count) == triton.next_power_of_2(count)
        assert [rounding.cdiv(count, size) for size in (1, 3, 64)] == [triton.cdiv(count, size) for size in (1, 3, 64)]


def called_in_kernels(source: str) -> set[str]:
    """Returns those of NAMES that functions with a decorator of Triton call."""
    kernels = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(each) for each in node.decorator_list)
    ]
    calls = [node.func for kernel in kernels for node in ast.walk(kernel) if isinstance(node, ast.Call)]
    return NAMES & {call.id for call in calls if isinstance(call, ast.Name)}


def test_no_kernel_rounds_on_the_host() -> None:
    for path in Path(rounding.__file__).parent.glob("*.py"):
        assert not called_in_kernels(path.read_text()), path.name
    assert called_in_kernels("@triton.jit\ndef kernel(n):\n    return cdiv(n, 2)\n") == {"cdiv"}
