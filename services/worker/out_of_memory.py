"""Memory that runs out in a worker: it gives up its KV cache, and registers with a smaller one.

The weights stay loaded. For the engine it is the death of a worker: its requests resume.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from services.worker.device import out_of_memory


class OutOfMemory(Exception):
    """Memory ran out in a step, or when a KV cache was allocated again."""


@contextmanager
def out_of_memory_raised() -> Iterator[None]:
    """Raises OutOfMemory for an error of the `with` block that means, or was caused by one that means, that memory ran
    out."""
    try:
        yield
    except Exception as error:
        if not (reason := _reason(error)):
            raise
        raise OutOfMemory(reason) from error


def _reason(error: Exception) -> str:
    """Returns what the error, or else its cause, says if memory ran out; empty if it did not.

    No variable of the caller may keep the cause: its traceback would keep the KV cache.
    """
    for one in (error, error.__cause__):
        if isinstance(one, Exception) and out_of_memory(one):
            return " ".join(str(one).split()) or type(one).__name__
    return ""
