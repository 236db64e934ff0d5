"""A CPU device with graphs and separate memory: replaying a graph calls the captured function again."""

from collections.abc import Callable, Sequence

from services.worker.device import CpuDevice


class FakeGraphDevice(CpuDevice):
    """`max_graphs`: captures that succeed; further ones run out of memory."""

    shares_memory = False

    def __init__(self, graph_sizes: Sequence[int], max_graphs: int = 2**31) -> None:
        super().__init__(lambda: 0)
        self.graph_sizes = graph_sizes
        self.num_captures = self.num_replays = 0
        self.max_graphs = max_graphs

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        work()
        if self.num_captures == self.max_graphs:
            raise RuntimeError("CUDA error: out of memory")
        self.num_captures += 1

        def replay() -> None:
            self.num_replays += 1
            work()

        return replay
