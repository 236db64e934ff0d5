"""A handle is used again only after two billion others, and never while it is in use."""

from services.rpc.handles import LAST, Handles


class InUse(set[int]):
    """Counts the lookups."""

    num_lookups = 0

    def __contains__(self, handle: object) -> bool:
        self.num_lookups += 1
        return super().__contains__(handle)


def test_handles_count_up_and_start_again_at_one() -> None:
    in_use = InUse()
    handles = Handles(in_use)
    assert [handles.new() for _ in range(3)] == [1, 2, 3]
    handles = Handles(in_use, after=LAST - 2)
    in_use |= {1, 2, 4}
    assert [handles.new() for _ in range(4)] == [LAST - 1, LAST, 3, 5]


def test_the_first_round_needs_no_lookups() -> None:
    """A lookup in the dispatcher takes time for every link."""
    in_use = InUse()
    handles = Handles(in_use, after=LAST - 3)
    assert [handles.new() for _ in range(3)] == [LAST - 2, LAST - 1, LAST] and in_use.num_lookups == 0
    assert [handles.new() for _ in range(2)] == [1, 2] and in_use.num_lookups == 2
