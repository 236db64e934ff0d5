"""The calls of one client's request, one per prompt: started, read and closed together."""

from services.rpc.errors import TandemError
from services.rpc.generated import text_pb2
from services.shim.telemetry import RequestTelemetry
from services.shim.text_call import TextCall
from services.shim.tokenizer_client import TokenizerClient
from services.shim.updates import UpdateMailbox


class Generation:
    """All choices of one client's request. The creator must call `close`, which aborts the open ones.

    `take` is UpdateMailbox.take: waits for updates of the choices, removes and returns them. `calls` has one call per
    submit, in the same order.
    """

    def __init__(
        self,
        client: TokenizerClient,
        submits: list[text_pb2.TextSubmit],
        telemetry: RequestTelemetry,
        open_generations: "set[Generation]",
    ) -> None:
        """Starts one call per submit. Adds this object to `open_generations` until `close`.

        Raises TandemError (UNAVAILABLE) if no tokenizer is connected; `telemetry` is then closed.
        """
        self._telemetry = telemetry
        self._open_generations = open_generations
        self._dispatcher = client.dispatcher
        self._updates = UpdateMailbox()
        self.take = self._updates.take
        self.num_choices = sum(len(submit.choices) for submit in submits)
        self.calls: list[TextCall] = []
        first_index = 0
        for submit in submits:
            self.calls.append(TextCall(submit, first_index, self._updates, telemetry))
            first_index += len(submit.choices)
        telemetry.submitted(self.num_choices)
        try:
            for call in self.calls:
                self._dispatcher.start(call)
        except TandemError as error:
            telemetry.refused(error.code)
            telemetry.close()
            raise
        self._open_generations.add(self)

    async def wait_accepted(self) -> None:
        """Waits until the engine accepts a choice, or one ends. Raises the TandemError of a choice that has failed."""
        await self._updates.wait()
        error = self._updates.error()
        if error is not None:
            raise error

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
        self._open_generations.discard(self)
