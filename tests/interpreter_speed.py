"""Triton's interpreter with the same results in half the time: it makes types and shapes anew for every operation.

What is cached here is never changed by the interpreter. Each function is that of Triton 3.7 but for the cache.
"""

import dataclasses
import inspect
import math
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

PARAMETERS = {
    "_get_np_dtype": ["tt_dtype"],
    "tensor": ["self", "handle", "type"],
    "block_type": ["self", "element_ty", "shape"],
    "broadcast_impl_value": ["self", "lhs", "rhs"],
}


def speed_up(interpreter: ModuleType) -> None:
    """Replaces functions of `interpreter` and its language. Raises RuntimeError where this Triton has others."""
    core, semantic = interpreter.tl.core, interpreter.TritonSemantic
    found = [interpreter._get_np_dtype, core.tensor.__init__, core.block_type.__init__, semantic.broadcast_impl_value]
    if [list(inspect.signature(function).parameters) for function in found] != list(PARAMETERS.values()):
        raise RuntimeError(f"this Triton has other parameters of {', '.join(PARAMETERS)}")
    interpreter._get_np_dtype = by_name(interpreter._get_np_dtype)  # type: ignore[attr-defined]
    core.tensor.__init__ = tensor_init(core)
    core.block_type.__init__ = block_type_init(core)
    semantic.broadcast_impl_value = unless_equal(semantic.broadcast_impl_value)
    drop_unread_checks(interpreter.interpreter_builder)


def drop_unread_checks(builder: Any) -> None:
    """Each sum and product of integers is computed in int64 too, and the result is read with `debug` only."""
    assert not builder.options.debug
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def by_name(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns `function` of a type with a cache. Types of pointers and blocks have no hash, and all have a name."""
    known: dict[str, Any] = {}

    def cached(tt_dtype: Any) -> Any:
        found = known.get(tt_dtype.name)
        if found is None:
            found = known[tt_dtype.name] = function(tt_dtype)
        return found

    return cached


def tensor_init(core: ModuleType) -> Callable[..., None]:
    @cache
    def size_and_shape(shape: tuple[int, ...]) -> tuple[Any, Any]:
        return core.constexpr(math.prod(shape)), core.tuple([core.constexpr(size) for size in shape])

    def init(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = size_and_shape(tuple(type.shape.values) if type.is_block() else ())

    return init


def block_type_init(core: ModuleType) -> Callable[..., None]:
    @cache
    def checked(shape: tuple[int, ...], *types: type) -> tuple[Any, int, str]:
        if not shape:
            raise TypeError("0d block_type is forbidden")
        as_tuple = core.tuple(core._unwrap_shape(list(shape)))
        return as_tuple, core.validate_block_shape(as_tuple), str(as_tuple)

    def init(self: Any, element_ty: Any, shape: Any) -> None:
        assert isinstance(shape, (list, core.tuple))
        sizes = tuple([size.value if isinstance(size, core.constexpr) else size for size in shape])
        self.element_ty = element_ty
        self.shape, self.numel, text = checked(sizes, *map(type, sizes))  # 4.0 is no 4 here
        self.name = f"<{text}, {element_ty}>"

    return init


def unless_equal(broadcast: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `broadcast` of two tensors, which are returned at once if their shapes are the same."""

    def broadcast_impl_value(self: Any, lhs: Any, rhs: Any) -> Any:
        if lhs.type.is_block() and rhs.type.is_block() and lhs.type.shape.values == rhs.type.shape.values:
            return lhs, rhs
        return broadcast(self, lhs, rhs)

    return broadcast_impl_value
