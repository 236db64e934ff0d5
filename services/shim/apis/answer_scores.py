"""The logprobs of all prompts of one response: where they go in a full response, and in a stream.

In a stream with `echo` and logprobs, the first chunk of each choice begins with those of its prompt, which choice 0
brings: chunks of other choices wait for them.
"""

from collections.abc import Iterator

import msgspec

from services.rpc.generated import common_pb2 as pb
from services.shim.apis.answer_options import AnswerOptions
from services.shim.apis.json_pieces import InPieces, WrittenColumns
from services.shim.apis.prompt_scores import ECHOED, FIELD, PromptScores
from services.shim.generation import Generation
from services.shim.time_slices import TimeSlices
from services.shim.updates import Update

CUT = (pb.FINISH_REASON_ABORT, pb.FINISH_REASON_ERROR)


class AnswerScores:
    def __init__(self, generation: Generation, options: AnswerOptions) -> None:
        self._generation = generation
        self._options = options
        self._scores: dict[int, PromptScores] = {}  # by prompt
        self._waiting: list[Update] = []
        self._is_cut = False  # a choice has failed, or the server ends
        self._begun: set[int] = set()  # choices of a stream that have a chunk

    async def take(self) -> list[Update]:
        """Waits for updates as Generation.take, and keeps the logprobs of prompts that they have. Returns at least one
        update, none of a choice whose prompt's logprobs are still to come, unless a choice has been cut off."""
        ready: list[Update] = []
        while not ready:
            for update in await self._generation.take():
                if update.prompt_logprobs:
                    size = await self._of(update.index).add(update.prompt_logprobs, TimeSlices())
                    self._generation.hold(size - update.held)
                    update.held = 0
                if update.token_ids or update.terminal is not None:
                    self._waiting.append(update)
                self._is_cut = self._is_cut or (update.terminal is not None and update.terminal.reason in CUT)
            waiting, self._waiting = self._waiting, []
            for update in waiting:
                (ready if self._is_cut or self._of(update.index).is_complete else self._waiting).append(update)
        return ready

    def field(self, index: int) -> InPieces | None:
        """Returns vLLM's `prompt_logprobs` for a choice; None: the response has none."""
        if not self._options.prompt_logprobs:
            return None
        self._of(index).begin()
        return InPieces(self._of(index).written.array(FIELD))

    def before(self, index: int, logprobs: WrittenColumns | None) -> Iterator[bytes]:
        """Returns the pieces of a choice's logprobs with those of its prompt before its own; None: it has none."""
        self._of(index).begin()
        return self._of(index).written.followed_by(logprobs or WrittenColumns(), ECHOED)

    def begins(self, index: int) -> bool:
        """Returns whether the next chunk of a choice is its first one; it is asked once for each."""
        begins = index not in self._begun
        self._begun.add(index)
        return begins

    def first_logprobs(self, index: int, logprobs: WrittenColumns | None) -> msgspec.Raw:
        return msgspec.Raw(b"".join(self.before(index, logprobs)))

    def _of(self, index: int) -> PromptScores:
        generation = self._generation
        prompt = index * generation.num_prompts // generation.num_choices
        if prompt not in self._scores:
            self._scores[prompt] = PromptScores(generation.calls[prompt], self._options)
        return self._scores[prompt]
