"""A thread with a deep stack takes what an ordinary one does not; those of a pool stay."""

import contextlib
import threading

from services.grammar.deep_stack import deep_pool, start_deep
from services.grammar.errors import GrammarError
from services.grammar.matcher import Matcher
from tests.grammar.vocabularies import demo_tokens

SECONDS = 10
DEPTH = 20_000


def compile_nested() -> str:
    """Returns the name of its thread."""
    with contextlib.suppress(GrammarError):
        Matcher(demo_tokens(), f'start: {"(" * DEPTH}"a"{")" * DEPTH}')
    return threading.current_thread().name


def test_a_thread_takes_deep_nesting() -> None:
    found: list[str] = []
    start_deep(lambda: found.append(compile_nested()), "deep").join()
    assert found == ["deep"]


def test_the_threads_of_a_pool_take_deep_nesting_and_stay() -> None:
    before = threading.stack_size()
    with deep_pool(2, "deep-pool") as pool:
        names = {thread.name for thread in threading.enumerate() if thread.name.startswith("deep-pool")}
        together = threading.Barrier(2)

        def nested() -> str:
            together.wait(SECONDS)
            return compile_nested()

        for _ in range(3):
            assert {future.result(SECONDS) for future in [pool.submit(nested) for _ in range(2)]} == names
    assert threading.stack_size() == before
