"""Grammars are checked in threads of their own, which have a deep stack, and are counted by the result."""

import asyncio
import json
import threading

import pytest
from prometheus_client import CollectorRegistry

from services.rpc.errors import TandemError, invalid
from services.tokenizer.grammar_checks import GrammarChecks


def parts(max_threads: int = 2) -> tuple[GrammarChecks, CollectorRegistry]:
    registry = CollectorRegistry()
    return GrammarChecks(registry, max_threads), registry


def count(registry: CollectorRegistry, result: str) -> float | None:
    return registry.get_sample_value("tandem:grammar_checks_total", {"result": result})


async def test_checks_are_counted_by_their_result() -> None:
    checks, registry = parts()
    assert await checks.run(lambda: 5) == 5

    def refuse() -> None:
        raise invalid("no")

    with pytest.raises(TandemError):
        await checks.run(refuse)
    with pytest.raises(ZeroDivisionError):
        await checks.run(lambda: 1 // 0)
    assert [count(registry, result) for result in ("accepted", "refused", "failed")] == [1, 1, 1]
    assert registry.get_sample_value("tandem:grammar_check_seconds_count") == 3


async def test_no_more_threads_than_allowed_run_at_once() -> None:
    checks, _ = parts(max_threads=2)
    both, gate, lock, running = threading.Event(), threading.Event(), threading.Lock(), [0, 0]

    def job() -> None:
        with lock:
            running[0] += 1
            running[1] = max(running)
            if running[0] == 2:
                both.set()
        gate.wait(10)
        with lock:
            running[0] -= 1

    tasks = [asyncio.create_task(checks.aside(job)) for _ in range(5)]
    assert await asyncio.to_thread(both.wait, 10)
    gate.set()
    await asyncio.gather(*tasks)
    assert running == [0, 2]


async def test_a_check_may_recurse_deeply() -> None:
    checks, _ = parts()
    deep = "[" * 900 + "]" * 900
    assert await checks.aside(lambda: json.loads(deep)) is not None


async def test_a_cancelled_check_leaves_its_thread_to_the_next_one() -> None:
    checks, _ = parts(max_threads=1)
    begun, gate = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        gate.wait(10)

    first = asyncio.create_task(checks.aside(wait))
    assert await asyncio.to_thread(begun.wait, 10)
    first.cancel()
    second = asyncio.create_task(checks.aside(lambda: 7))
    gate.set()
    assert await second == 7
