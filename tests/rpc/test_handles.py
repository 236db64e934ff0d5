"""A handle comes again only after two billion others, and never while it is in use."""

from services.rpc.handles import LAST, Handles
from tests.rpc.played_links import Bench


def test_they_count_up_and_go_round() -> None:
    in_use: set[int] = set()
    handles = Handles(in_use)
    assert [handles.new() for _ in range(3)] == [1, 2, 3]
    handles = Handles(in_use, after=LAST - 2)
    in_use |= {1, 2, LAST}
    assert [handles.new() for _ in range(3)] == [LAST - 1, 3, 4]


async def test_a_dispatcher_passes_over_those_of_its_open_calls() -> None:
    bench = Bench()
    await bench.links[0].up()
    placed = bench.start("placed")
    started = bench.start("started")
    await bench.links[0].down(died=False)
    assert placed.handle in bench.dispatcher and started.handle in bench.dispatcher
    bench.dispatcher.abort(placed)
    assert placed.handle not in bench.dispatcher
    assert bench.dispatcher.new_handle() not in (placed.handle, started.handle)
