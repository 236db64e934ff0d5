"""Abort finds the open calls of an id, however many there are."""

from services.shim.gateway.open_calls import OpenCalls
from tests.shim.harness import Shim


async def test_calls_are_found_while_they_are_open() -> None:
    shim, calls = Shim(connected=True), OpenCalls()
    generations = [shim.start(1)[0] for _ in range(3)]

    def num_open() -> list[int]:
        return [len(one.calls[0].open_choices) for one in generations]

    with calls.add("same", generations[0]), calls.add("same", generations[1]), calls.add("other", generations[2]):
        calls.abort(["unknown"])
        assert num_open() == [1, 1, 1]
        calls.abort(["same"])
        assert num_open() == [0, 0, 1]
    calls.abort(["other"])
    assert num_open() == [0, 0, 1], "that call has ended"


async def test_calls_without_an_id_are_not_found() -> None:
    shim, calls = Shim(connected=True), OpenCalls()
    generation, _ = shim.start(1)
    with calls.add("", generation):
        calls.abort([""])
        assert len(generation.calls[0].open_choices) == 1
