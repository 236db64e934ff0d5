"""The send queue to one tokenizer: acceptances, tokens and terminal messages of its choices, and the engine's stats.

Tokens of one choice merge until they are sent, as far as they fall in one range of MERGED_TOKENS, or fewer with many
logprobs.
"""

from dataclasses import dataclass
from typing import Protocol

from engine_core.events import Logprobs, NewTokens
from services.rpc.columns import ITEM_BYTES, pack_f32, pack_u32
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2
from services.rpc.mailbox import MERGED_TOKENS, Mailbox, Service, num_fitting

NO_LOGPROBS = Logprobs(0, [], [])
MERGED_LOGPROBS = MERGED_TOKENS * 21  # of one entry, as of MERGED_TOKENS with 20 top logprobs each


class ChoiceMailbox(Protocol):
    """What happens to the choices of one stream, or of one program's call. Handles are the caller's."""

    def put_accepted(self, accepted: engine_pb2.Accepted) -> None: ...
    def put_prompt_logprobs(self, scored: pb.PromptLogprobs) -> None: ...
    def put_tokens(self, handle: int, tokens: NewTokens) -> None: ...
    def put_terminal(self, terminal: engine_pb2.Terminal) -> None: ...


@dataclass(slots=True)
class _PendingRow:
    """Consecutive tokens of one choice that are not sent yet, with `width` logprobs per token, flat."""

    handle: int
    start_index: int
    token_ids: list[int]
    width: int
    logprob_ids: list[int]
    logprobs: list[float]

    def num_bytes(self) -> int:
        return ITEM_BYTES * (len(self.token_ids) + 2 * len(self.logprobs))


class StepMailbox(Mailbox[engine_pb2.EngineUp]):
    def __init__(self, epoch: int, service: Service) -> None:
        super().__init__()
        self._epoch = epoch
        self._service = service
        self._accepted: list[engine_pb2.Accepted] = []
        self._prompt_logprobs: list[pb.PromptLogprobs] = []
        self._rows: dict[tuple[int, int], _PendingRow] = {}  # by handle and number of the range
        self._terminals: list[engine_pb2.Terminal] = []
        self._stats = engine_pb2.EngineStats()

    def put_accepted(self, accepted: engine_pb2.Accepted) -> None:
        self._accepted.append(accepted)
        self._wake.set()

    def put_prompt_logprobs(self, scored: pb.PromptLogprobs) -> None:
        self._prompt_logprobs.append(scored)
        self._wake.set()

    def put_tokens(self, handle: int, tokens: NewTokens) -> None:
        logprobs = tokens.logprobs or NO_LOGPROBS
        key = (handle, tokens.start_index // _merged_tokens(logprobs.width))
        row = self._rows.get(key)
        if row is None:
            self._rows[key] = _PendingRow(
                handle,
                tokens.start_index,
                list(tokens.token_ids),
                logprobs.width,
                list(logprobs.token_ids),
                list(logprobs.values),
            )
        else:
            row.token_ids += tokens.token_ids
            row.logprob_ids += logprobs.token_ids
            row.logprobs += logprobs.values
        self._wake.set()

    def put_terminal(self, terminal: engine_pb2.Terminal) -> None:
        self._terminals.append(terminal)
        self._wake.set()

    def put_stats(self, stats: engine_pb2.EngineStats) -> None:
        """Replaces the stats that the next message carries. Causes no message itself."""
        self._stats = stats

    def take(self) -> engine_pb2.EngineUp:
        num_scored = num_fitting(one.ByteSize() for one in self._prompt_logprobs)
        scored, self._prompt_logprobs = self._prompt_logprobs[:num_scored], self._prompt_logprobs[num_scored:]
        # They come before the tokens of their choices.
        count = 0 if self._prompt_logprobs else num_fitting(row.num_bytes() for row in self._rows.values())
        rows = list(self._rows.values())[:count]
        self._rows = dict(list(self._rows.items())[count:])
        accepted, self._accepted = self._accepted, []
        terminals: list[engine_pb2.Terminal] = []
        if self._rows or self._prompt_logprobs:
            self._wake.set()
        else:  # a terminal message comes after all tokens of its choice
            terminals, self._terminals = self._terminals, []
        batch = engine_pb2.StepBatch(
            epoch=self._epoch,
            step_id=self._stats.num_steps,
            accepted=accepted,
            handles=pack_u32(row.handle for row in rows),
            start_indices=pack_u32(row.start_index for row in rows),
            counts=pack_u32(len(row.token_ids) for row in rows),
            logprob_widths=pack_u32(row.width for row in rows),
            token_ids=pack_u32(token_id for row in rows for token_id in row.token_ids),
            logprob_token_ids=pack_u32(token_id for row in rows for token_id in row.logprob_ids),
            logprobs=pack_f32(value for row in rows for value in row.logprobs),
            prompt_logprobs=scored,
            terminals=terminals,
            stats=self._stats,
        )
        return engine_pb2.EngineUp(step=batch, ready=self._service.is_ready(), served=self._service.is_served())


def _merged_tokens(width: int) -> int:
    """Returns how many tokens with `width` logprobs each merge into one entry at most."""
    return min(MERGED_TOKENS, max(1, MERGED_LOGPROBS // width)) if width else MERGED_TOKENS
