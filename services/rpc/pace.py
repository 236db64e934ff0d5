"""The pace of streamed answers: gRPC costs about the same per message, however many tokens the message has.

A message takes 50 to 70 µs of CPU time: docs/decisions/0032 derives it from the figures of docs/log.md.
"""

import asyncio

RESPONSE_SECONDS = 1 / 1600  # a message's share of a round


class Pace:
    """All streams of a process together send at most 1 / RESPONSE_SECONDS messages a second, in rounds.

    A stream that has sent waits for the end of the round; its tokens merge meanwhile. Each message makes the round
    longer, so a stream that sends nothing slows no other. All streams wake at once: woken one by one, they would cost
    twice the CPU time.
    """

    def __init__(self) -> None:
        self._ends_at = 0.0  # on the event loop's clock
        self._round: asyncio.Future[None] | None = None  # done when the round ends

    async def pause(self, num_messages: int = 1) -> None:
        """Returns when a stream that has just sent so many messages may send again."""
        loop = asyncio.get_running_loop()
        if self._round is None:
            self._round, self._ends_at = loop.create_future(), loop.time()
            loop.call_soon(self._end_if_over, loop)
        self._ends_at += num_messages * RESPONSE_SECONDS
        await asyncio.shield(self._round)

    def _end_if_over(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop.time() < self._ends_at:
            loop.call_at(self._ends_at, self._end_if_over, loop)
            return
        assert self._round is not None
        self._round.set_result(None)
        self._round = None
