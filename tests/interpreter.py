"""Triton's interpreter for machines without a GPU, with a `tl.dot` that has one fixed order of summation.

Triton's own interpreted dot is numpy's matmul. Its order of summation depends on the operands' shape and on the core
type that OpenBLAS picks, so that equal rows need not have equal bits. This dot has one order on every machine. Triton's
own dot multiplies the encodings of bf16; this one takes only float32, to which interpreted kernels cast.
"""

import inspect
import os
from types import ModuleType

import numpy as np
import numpy.typing as npt

from tests.interpreter_speed import speed_up

DOT_PARAMETERS = ["self", "a", "b", "d", "input_precision", "max_num_imprecise_acc"]


def interpret() -> None:
    """Switches the interpreter on; call it before anything imports Triton's language.

    Raises RuntimeError where this Triton has another dot than the one that is replaced.
    """
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.runtime import interpreter

    replace_dot(interpreter.InterpreterBuilder, interpreter.TensorHandle)
    patch_once(interpreter)
    speed_up(interpreter)


def replace_dot(builder: type, handle: type) -> None:
    """Gives `builder` the dot below. `handle` is the interpreter's tensor: made of (data, scalar type)."""
    dot = getattr(builder, "create_dot", None)
    if dot is None or list(inspect.signature(dot).parameters) != DOT_PARAMETERS:
        raise RuntimeError("this Triton's interpreter has no InterpreterBuilder.create_dot of the known parameters")

    def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):  # type: ignore[no-untyped-def]
        types = {str(tensor.dtype.scalar) for tensor in (a, b, d)}
        if types != {"fp32"}:
            raise TypeError(f"an interpreted tl.dot takes fp32 alone, not {', '.join(sorted(types))}")
        return handle(ordered_product(a.data, b.data) + d.data, d.dtype.scalar)

    create_dot.__signature__ = inspect.signature(dot)  # type: ignore[attr-defined]
    builder.create_dot = create_dot  # type: ignore[attr-defined]


def patch_once(interpreter: ModuleType) -> None:
    """Skips the search for builtins in each call of a device function: the launch has replaced them already.

    The search would take a third of the time of small kernels. Raises RuntimeError where this Triton has no such
    search.
    """
    if not (hasattr(interpreter, "_patch_lang") and hasattr(interpreter, "_LangPatchScope")):
        raise RuntimeError("this Triton's interpreter has no _patch_lang and _LangPatchScope")
    patch, scope = interpreter._patch_lang, interpreter._LangPatchScope
    languages = (interpreter.tl, interpreter.tl.core)

    def patch_if_needed(fn):  # type: ignore[no-untyped-def]
        seen = fn.__globals__.values()
        used = [language for language in languages if any(value is language for value in seen)]
        unpatched = any(interpreter.tl.core.is_builtin(language.load) for language in used)
        return patch(fn) if unpatched or not used else scope()

    interpreter._patch_lang = patch_if_needed  # type: ignore[attr-defined]


def ordered_product(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Returns a [..., m, k] @ b [..., k, n]: summed from zero for k ascending, each product and sum rounded once."""
    total = np.zeros((*a.shape[:-1], b.shape[-1]), dtype=np.float32)
    product = np.empty_like(total)
    for k in range(a.shape[-1]):
        np.multiply(a[..., :, k, None], b[..., k, None, :], out=product)
        np.add(total, product, out=total)
    return total
