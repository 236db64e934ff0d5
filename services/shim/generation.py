"""The calls of one client's request, one per prompt: started, read and closed together."""

from collections.abc import Mapping

from services.rpc.errors import TandemError
from services.rpc.generated import text_pb2
from services.shim.bulk import NO_BULK, Bulk
from services.shim.in_progress import Hold, no_hold
from services.shim.telemetry import RequestTelemetry
from services.shim.text_call import TextCall
from services.shim.time_slices import TimeSlices
from services.shim.tokenizer_client import TokenizerClient
from services.shim.updates import UpdateMailbox

FIRST_CALLS = 16  # so many take less than a millisecond
NO_BULKS: Mapping[int, Bulk] = {}


class Generation:
    """All choices of one client's request. The creator must call `close`, which aborts the open ones.

    `take` is UpdateMailbox.take: waits for updates of the choices, removes and returns them. `calls` has one call per
    submit that has been started, in the same order. `hold` counts the memory of the answer; if all requests hold too
    much, this one ends with its error.
    """

    def __init__(
        self,
        client: TokenizerClient,
        submits: list[text_pb2.TextSubmit],
        telemetry: RequestTelemetry,
        open_generations: "set[Generation]",
        *,
        bulks: Mapping[int, Bulk] = NO_BULKS,
        hold: Hold = no_hold,
    ) -> None:
        """Starts the calls of the first FIRST_CALLS submits; `start_others` starts the others. `bulks`: large fields of
        submits, by index. Adds this object to `open_generations` until `close`.

        Raises TandemError: UNAVAILABLE if no tokenizer is connected, RESOURCE_EXHAUSTED if too many wait for one. The
        calls are then aborted, and `telemetry` is closed.
        """
        self.hold = hold
        self._bulks = bulks
        self._waiting = submits[FIRST_CALLS:]
        self._telemetry = telemetry
        self._open_generations = open_generations
        self._dispatcher = client.dispatcher
        self._updates = UpdateMailbox(hold, self._on_full)
        self.take = self._updates.take
        self.num_choices = sum(len(submit.choices) for submit in submits)
        self.num_prompts = len(submits)
        self.calls: list[TextCall] = []
        self._num_started = 0  # choices
        telemetry.submitted(self.num_choices)
        try:
            for submit in submits[:FIRST_CALLS]:
                self._start(submit)
        except TandemError as error:
            telemetry.refused(error.code)
            self.close()
            raise
        self._open_generations.add(self)

    def _start(self, submit: text_pb2.TextSubmit) -> None:
        bulk = self._bulks.get(len(self.calls), NO_BULK)
        call = TextCall(submit, self._num_started, self._updates, self._telemetry, bulk)
        self._dispatcher.start(call)
        self.calls.append(call)
        self._num_started += len(submit.choices)

    async def start_others(self) -> None:
        """Starts the calls of the other submits, with pauses.

        Raises TandemError: UNAVAILABLE if no tokenizer is left, the error of a choice that has failed meanwhile.
        """
        if not self._waiting:
            return
        slices = TimeSlices()
        for submit in self._waiting:
            self._start(submit)
            await slices.pause()
            self._updates.check()
        self._waiting = []

    async def wait_accepted(self) -> None:
        """Waits until the engine accepts a choice, or one ends. Raises the TandemError of a choice that has failed."""
        await self._updates.wait()
        self._updates.check()

    @property
    def numerics_id(self) -> str:
        """That of the engine that accepted a choice; before, that of the engine by the last tokenizer's hello."""
        accepted = next((call.numerics_id for call in self.calls if call.numerics_id), "")
        peer = self._dispatcher.peer
        return accepted or (peer.engine.numerics_id if peer is not None else "")

    @property
    def ignored_keywords(self) -> list[str]:
        """The keywords of the request's schema that have no effect, with their paths. All prompts have the same."""
        return next((call.ignored_keywords for call in self.calls if call.ignored_keywords), [])

    def fail(self, error: TandemError) -> None:
        """Puts an update with this error for every open choice, so that the response ends with it.

        The choices stay open until `close`.
        """
        for call in self.calls:
            call.interrupt(error)

    def _on_full(self, error: TandemError) -> None:
        """Ends the response with `error`, without the updates that wait for it, and aborts the open choices."""
        self._updates.clear()
        self.fail(error)
        for call in self.calls:
            self._dispatcher.abort(call)

    def abort(self) -> None:
        """Aborts the open choices. Puts an update for each of them that ends it with the reason ABORT."""
        for call in self.calls:
            call.cut()
            self._dispatcher.abort(call)

    def close(self) -> None:
        """Aborts the open choices, closes the telemetry, leaves `open_generations`. A second call changes nothing."""
        for call in self.calls:
            self._dispatcher.abort(call)
        self._telemetry.close()
        self._updates.close()
        self._open_generations.discard(self)
