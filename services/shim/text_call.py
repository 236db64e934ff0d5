"""The call for one prompt: passes each message of the tokenizer to the mailbox and to the telemetry."""

from collections.abc import Callable, Sequence
from typing import Any

from services.rpc.call import Call, StreamBroken
from services.rpc.columns import ITEM_BYTES
from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.rpc.pieces import Piece, add_pieces, unpacked
from services.shim.bulk import NO_BULK, Bulk, BulkSubmit, without_input
from services.shim.telemetry import RequestTelemetry
from services.shim.updates import UpdateMailbox


class TextCall(Call[text_pb2.TextSubmit]):
    """One submit to a tokenizer: merges new text and tokens into `updates` and counts them in `telemetry`.

    `bulk` has the large fields that the submit lacks.
    `first_index` is the index of the submit's first choice among all choices of the HTTP request.
    `prompt_token_ids` is a column of little-endian u32, empty until the first choice is accepted, unless the prompt is
    token ids. `sampling` has the parameters that the engine uses, if the submit asks for them.
    """

    def __init__(
        self,
        submit: text_pb2.TextSubmit,
        first_index: int,
        updates: UpdateMailbox,
        telemetry: RequestTelemetry,
        bulk: Bulk = NO_BULK,
    ) -> None:
        super().__init__(submit)
        self._bulk = bulk
        self._telemetry = telemetry
        self._max_tokens = submit.sampling.max_tokens if submit.sampling.HasField("max_tokens") else None
        self._indices = {choice.handle: first_index + choice.choice for choice in submit.choices}
        self._updates = updates
        self.prompt_token_ids = submit.prompt_token_ids
        self.sampling: pb.SamplingParams | None = None
        self.ignored_keywords: list[str] = []  # of the schema, with their paths; once accepted
        self.seed = 0  # once accepted
        self.num_cached_tokens = 0  # of the prompt; once accepted
        self.first_prompt_token = b""  # its text; once accepted, if the submit asks for logprobs of the prompt
        self._accepted = False

    def next_submit(self, *, alone: bool, on_cleared: Callable[[], None]) -> Any:
        submit = super().next_submit(alone=alone, on_cleared=on_cleared)
        return submit if self._bulk is NO_BULK else BulkSubmit(submit, self._bulk)

    def on_accepted(self, accepted: text_pb2.TextAccepted) -> None:
        if self.record_accepted(accepted):
            if accepted.prompt_token_ids and self._bulk is not NO_BULK:
                self._bulk = without_input(self._bulk)
            if not self._accepted:
                self._accepted = True
                self.prompt_token_ids = accepted.prompt_token_ids or self.prompt_token_ids
                self.seed = accepted.seed
                self.num_cached_tokens = accepted.cached_tokens
                self.first_prompt_token = accepted.first_prompt_token
                self.sampling = accepted.sampling if accepted.HasField("sampling") else None
                self.ignored_keywords = list(accepted.resolved.ignored_keywords)
                self._telemetry.accepted(
                    self._indices.values(), self._max_tokens, self.num_prompt_tokens, accepted.cached_tokens
                )
                self._telemetry.ignored(self.ignored_keywords)
            self._updates.accept()

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids) // ITEM_BYTES

    def on_prompt_logprobs(self, scored: text_pb2.TextPromptLogprobs) -> None:
        """Adds logprobs of the prompt to the choice's pending update; ignores repeated ones. Raises StreamBroken as
        `record_prompt_logprobs`."""
        if self.record_prompt_logprobs(scored.logprobs):
            self._updates.add_prompt_logprobs(self._indices[scored.logprobs.handle], scored)

    def on_row(
        self,
        handle: int,
        start_index: int,
        token_ids: bytes,
        pieces: list[Piece],
        logprobs: Sequence[text_pb2.TokenLogprobs],
    ) -> None:
        """Adds new tokens and text to the choice's pending update; ignores a repeated row.

        Raises StreamBroken on a gap in the token indices, or if only a part of the tokens is new: the text of such a
        row cannot be divided.
        """
        fresh = self.record_tokens(handle, start_index, token_ids)
        if not fresh:
            return
        if len(fresh) < len(token_ids):
            raise StreamBroken(f"handle {handle}: only {len(fresh) // ITEM_BYTES} of the row's tokens are new")
        index = self._indices[handle]
        update = self._updates.pending(index)
        add_pieces(update.pieces, pieces)
        update.token_ids += fresh
        if logprobs:
            self._updates.add_logprobs(update, logprobs)
        self._telemetry.tokens(index, len(fresh) // ITEM_BYTES)

    def fail(self, error: TandemError) -> None:
        for handle in list(self.open_choices):
            self.end(handle)
            self.on_terminal(_failed(error, handle))

    def interrupt(self, error: TandemError) -> None:
        """Puts an update with this error for every open choice, which stays open.

        `close` of the telemetry counts these choices as aborted.
        """
        for handle in self.open_choices:
            self._updates.pending(self._indices[handle]).terminal = _failed(error, handle)

    def cut(self) -> None:
        """Puts an update that ends every open choice with the reason ABORT; the choice stays open.

        `close` of the telemetry counts these choices as aborted.
        """
        for handle, choice in self.open_choices.items():
            self._updates.pending(self._indices[handle]).terminal = text_pb2.TextTerminal(
                handle=handle,
                reason=pb.FINISH_REASON_ABORT,
                prompt_tokens=self.num_prompt_tokens,
                output_tokens=len(choice.token_ids) // ITEM_BYTES,
                cached_tokens=self.num_cached_tokens,
            )

    def on_terminal(self, terminal: text_pb2.TextTerminal) -> None:
        index = self._indices[terminal.handle]
        update = self._updates.pending(index)
        add_pieces(update.pieces, unpacked(terminal.pieces, terminal.piece_kinds))
        update.terminal = terminal
        self._telemetry.ended(index, terminal)


def _failed(error: TandemError, handle: int) -> text_pb2.TextTerminal:
    return text_pb2.TextTerminal(handle=handle, reason=pb.FINISH_REASON_ERROR, error=error.to_proto())
