"""What a program has received of a request, and the request that continues it at another callee.

For the calls Generate of both services; their messages have equal field names. Knows no channel.
"""

import itertools
from typing import Any

from services.rpc.columns import ITEM_BYTES
from services.rpc.generated import text_pb2


class Progress:
    """The choices of one request. `request` is what to send next; it is always streamed."""

    def __init__(self, request: Any) -> None:
        """`request` may itself resume one; it is copied."""
        self.request = type(request)()
        self.request.CopyFrom(request)
        self.request.stream = True
        self.is_done = False  # every choice has ended, and the usage is there
        resume = self.request.resume
        self._open = {choice.index: list(choice.token_ids) for choice in resume.choices}
        self._ended: set[int] = set()
        self._num_ended_tokens = 0  # of choices that ended in an earlier call
        self._started: Any = resume.started if resume.HasField("started") else None
        self._is_started = False  # `started` was received
        # Index of the first prompt token without logprobs; 0: they come with choice 0, from its first one.
        self._scored_to = next((one.prompt_logprobs_from for one in resume.choices if one.index == 0), 0)

    @property
    def is_resumed(self) -> bool:
        return bool(self.request.HasField("resume"))

    def add(self, response: Any) -> bool:
        """Takes a response, and makes it what one undisturbed call would have sent: `started` once, the usage of all
        choices. Returns whether there is anything in it."""
        if response.HasField("started"):
            if self._started is None:
                self._started = type(response.started)()
                self._started.CopyFrom(response.started)
            if self._is_started:
                response.ClearField("started")
            self._is_started = True
        for delta in response.choices:
            self._open.setdefault(delta.index, []).extend(delta.token_ids)
            if delta.finish_reason:
                self._ended.add(delta.index)
        for scored in response.prompt_logprobs:
            one = scored.logprobs if isinstance(scored, text_pb2.TextPromptLogprobs) else scored
            self._scored_to = one.start_index + len(one.ranks) // ITEM_BYTES
        if response.HasField("usage"):
            response.usage.output_tokens += self._num_ended_tokens
            self.is_done = True
        return bool(response.HasField("started") or response.choices or response.prompt_logprobs or self.is_done)

    def resume(self) -> None:
        """Makes `request` continue the choices that have not ended, after the tokens received."""
        indices = self._indices()
        self._num_ended_tokens += sum(len(self._open.pop(index)) for index in self._ended & self._open.keys())
        resume = type(self.request.resume)(started=self._started)
        for index in indices - self._ended:
            scored_to = self._scored_to if index == 0 else 0
            resume.choices.add(index=index, token_ids=self._open.get(index, ()), prompt_logprobs_from=scored_to)
        self.request.resume.CopyFrom(resume)

    def _indices(self) -> set[int]:
        """Returns the choices of the request: those that it resumes, else all."""
        resumed = {choice.index for choice in self.request.resume.choices}
        return resumed or set(range(self.request.n or 1))


class Whole:
    """Joins the responses of a streamed call into the one that a call without `stream` has."""

    def __init__(self, response: Any) -> None:
        """`response`: an empty one."""
        self._response = response
        self._deltas: dict[int, Any] = {}

    def add(self, response: Any) -> None:
        for delta in response.choices:
            if delta.index not in self._deltas:
                self._deltas[delta.index] = type(delta)()
            self._deltas[delta.index].MergeFrom(delta)
        response.ClearField("choices")
        self._response.MergeFrom(response)

    def response(self) -> Any:
        for index in sorted(self._deltas):
            delta = self._deltas[index]
            if "pieces" in delta.DESCRIPTOR.fields_by_name:
                _join_pieces(delta)
            self._response.choices.append(delta)
        return self._response


def _join_pieces(delta: Any) -> None:
    """Merges neighbours of the same kind."""
    pieces = [
        (kind, "".join(piece.text for piece in group))
        for kind, group in itertools.groupby(delta.pieces, lambda piece: piece.kind)
    ]
    del delta.pieces[:]
    for kind, text in pieces:
        delta.pieces.add(kind=kind, text=text)
