"""A handle comes again only after two billion others, and never while it is in use."""

from services.rpc.handles import LAST, Handles
from tests.rpc.played_links import Bench


class InUse(set[int]):
    """Counts the questions."""

    num_asked = 0

    def __contains__(self, handle: object) -> bool:
        self.num_asked += 1
        return super().__contains__(handle)


def test_they_count_up_and_go_round() -> None:
    in_use = InUse()
    handles = Handles(in_use)
    assert [handles.new() for _ in range(3)] == [1, 2, 3]
    handles = Handles(in_use, after=LAST - 2)
    in_use |= {1, 2, 4}
    assert [handles.new() for _ in range(4)] == [LAST - 1, LAST, 3, 5]


def test_what_is_in_use_is_asked_only_once_they_have_gone_round() -> None:
    """The answer takes as long as there are links and calls without one."""
    in_use = InUse()
    handles = Handles(in_use, after=LAST - 3)
    assert [handles.new() for _ in range(3)] == [LAST - 2, LAST - 1, LAST] and in_use.num_asked == 0
    assert [handles.new() for _ in range(2)] == [1, 2] and in_use.num_asked == 2


async def test_a_dispatcher_passes_over_those_of_its_open_calls() -> None:
    bench = Bench()
    await bench.links[0].up()
    placed = bench.start("placed")
    started = bench.start("started")
    await bench.links[0].down(died=False)
    assert placed.handle in bench.dispatcher and started.handle in bench.dispatcher
    bench.dispatcher.abort(placed)
    assert placed.handle not in bench.dispatcher
    bench.dispatcher._handles = Handles(bench.dispatcher, after=LAST)
    assert (placed.handle, started.handle) == (1, 2)
    assert [bench.dispatcher.new_handle() for _ in range(2)] == [1, 3]
