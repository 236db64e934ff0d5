"""The calls of one HTTP request, one per prompt, as one object that is started, read and closed."""

from services.rpc.errors import TandemError
from services.rpc.generated import text_pb2
from services.shim.telemetry import RequestTelemetry
from services.shim.text_call import TextCall
from services.shim.tokenizer_client import TokenizerClient
from services.shim.updates import Updates


class Generation:
    """All choices of one HTTP request. Whoever makes one closes it, so that a client's hang-up stops the work."""

    def __init__(
        self,
        client: TokenizerClient,
        submits: list[text_pb2.TextSubmit],
        record: RequestTelemetry,
        open_generations: "set[Generation]",
    ) -> None:
        """Raises TandemError when no tokenizer is connected."""
        self._record = record
        self._open_generations = open_generations
        self._dispatcher = client.dispatcher
        self._updates = Updates()
        self.take = self._updates.take
        self.num_choices = sum(len(submit.choices) for submit in submits)
        self.calls: list[TextCall] = []
        first_index = 0
        for submit in submits:
            self.calls.append(TextCall(submit, first_index, self._updates, record))
            first_index += len(submit.choices)
        record.submitted(first_index)
        try:
            for call in self.calls:
                self._dispatcher.start(call)
        except TandemError as error:
            record.refuse(error.code)
            record.close()
            raise
        self._open_generations.add(self)

    async def accepted(self) -> None:
        """Returns once the request runs. Raises its TandemError when it was refused instead."""
        await self._updates.wait()
        error = self._updates.error()
        if error is not None:
            raise error

    def fail(self, error: TandemError) -> None:
        """Ends every open choice with this error; the client is told."""
        for call in self.calls:
            call.cut_off(error)

    def close(self) -> None:
        """Aborts what still runs."""
        for call in self.calls:
            self._dispatcher.abort(call)
        self._record.close()
        self._open_generations.discard(self)
