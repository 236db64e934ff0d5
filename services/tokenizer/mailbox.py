"""The send queue to one shim: acceptances, tokens with their pieces of text, and terminal messages of its choices.

Tokens of one choice merge until they are sent, as far as they fall in one range of MERGED_TOKENS. Pending rows are
plain lists; `take` makes the columns. This code runs for every token.
"""

from dataclasses import dataclass
from typing import Protocol

from services.rpc.columns import ITEM_BYTES, pack_u32
from services.rpc.generated import text_pb2
from services.rpc.mailbox import MERGED_TOKENS, Mailbox, Service, num_fitting
from services.rpc.pieces import Piece, add_pieces, kinds_of

ROW_BYTES = 8 * ITEM_BYTES  # at most, of a row's entries in the columns with one per row, and of its piece's header


class ChoiceMailbox(Protocol):
    """What happens to the choices of one stream, or of one program's call. Handles are the caller's."""

    def put_accepted(self, accepted: text_pb2.TextAccepted) -> None: ...
    def put_prompt_logprobs(self, scored: text_pb2.TextPromptLogprobs) -> None: ...

    def put_tokens(
        self,
        handle: int,
        start_index: int,
        token_ids: list[int],
        pieces: list[Piece],
        logprobs: list[text_pb2.TokenLogprobs],
    ) -> None:
        """Adds the choice's next tokens and the text that they release. The mailbox may change these lists later.

        `start_index`: index of the first token in the answer. `logprobs`: one entry per token, or none.
        """

    def put_terminal(self, terminal: text_pb2.TextTerminal) -> None: ...


@dataclass(slots=True)
class _PendingRow:
    """Consecutive tokens of one choice that are not sent yet. `logprobs`: one entry per token, or none."""

    handle: int
    start_index: int
    token_ids: list[int]
    pieces: list[Piece]
    logprobs: list[text_pb2.TokenLogprobs]

    def num_bytes(self) -> int:
        """Returns an upper bound of the row's size in a message: UTF-8 has at most four bytes per character."""
        total = ROW_BYTES + ITEM_BYTES * len(self.token_ids)
        for _, text in self.pieces:
            total += ROW_BYTES + 4 * len(text)
        return total + sum(one.ByteSize() + ITEM_BYTES for one in self.logprobs) if self.logprobs else total


class TextMailbox(Mailbox[text_pb2.TextUp]):
    def __init__(self, epoch: int, service: Service) -> None:
        super().__init__()
        self._epoch = epoch
        self._service = service
        self._accepted: list[text_pb2.TextAccepted] = []
        self._prompt_logprobs: list[text_pb2.TextPromptLogprobs] = []
        self._rows: dict[tuple[int, int], _PendingRow] = {}  # by handle and start_index // MERGED_TOKENS
        self._terminals: list[text_pb2.TextTerminal] = []

    def put_accepted(self, accepted: text_pb2.TextAccepted) -> None:
        self._accepted.append(accepted)
        self._wake.set()

    def put_prompt_logprobs(self, scored: text_pb2.TextPromptLogprobs) -> None:
        self._prompt_logprobs.append(scored)
        self._wake.set()

    def put_tokens(
        self,
        handle: int,
        start_index: int,
        token_ids: list[int],
        pieces: list[Piece],
        logprobs: list[text_pb2.TokenLogprobs],
    ) -> None:
        key = (handle, start_index // MERGED_TOKENS)
        row = self._rows.get(key)
        if row is None:
            self._rows[key] = _PendingRow(handle, start_index, token_ids, pieces, logprobs)
        else:
            row.token_ids += token_ids
            add_pieces(row.pieces, pieces)
            row.logprobs += logprobs
        self._wake.set()

    def put_terminal(self, terminal: text_pb2.TextTerminal) -> None:
        self._terminals.append(terminal)
        self._wake.set()

    def take(self) -> text_pb2.TextUp:
        accepted, self._accepted = self._accepted, []
        num_scored = num_fitting(one.ByteSize() for one in self._prompt_logprobs)
        scored, self._prompt_logprobs = self._prompt_logprobs[:num_scored], self._prompt_logprobs[num_scored:]
        rows = list(self._rows.values())
        # Logprobs of prompts come before the tokens of their choices.
        count = 0 if self._prompt_logprobs else num_fitting(row.num_bytes() for row in rows)
        terminals: list[text_pb2.TextTerminal] = []
        if count < len(rows) or self._prompt_logprobs:
            self._rows = dict(list(self._rows.items())[count:])
            del rows[count:]
            self._wake.set()
        else:  # a terminal message comes after all tokens of its choice
            self._rows = {}
            terminals, self._terminals = self._terminals, []
        batch = _batch(self._epoch, accepted, rows, terminals)
        batch.prompt_logprobs.extend(scored)
        return text_pb2.TextUp(batch=batch, ready=self._service.is_ready(), served=self._service.is_served())


def _batch(
    epoch: int,
    accepted: list[text_pb2.TextAccepted],
    rows: list[_PendingRow],
    terminals: list[text_pb2.TextTerminal],
) -> text_pb2.TextBatch:
    # Lists instead of generators: they are faster.
    pieces = [piece for row in rows for piece in row.pieces]
    batch = text_pb2.TextBatch(
        epoch=epoch,
        accepted=accepted,
        handles=pack_u32([row.handle for row in rows]),
        start_indices=pack_u32([row.start_index for row in rows]),
        counts=pack_u32([len(row.token_ids) for row in rows]),
        token_ids=pack_u32([token_id for row in rows for token_id in row.token_ids]),
        piece_counts=pack_u32([len(row.pieces) for row in rows]),
        piece_kinds=kinds_of(pieces),
        pieces=[text for _, text in pieces],
        terminals=terminals,
    )
    logprob_counts = [len(row.logprobs) for row in rows]
    if any(logprob_counts):
        batch.logprob_counts = pack_u32(logprob_counts)
        batch.logprobs.extend([one for row in rows for one in row.logprobs])
    return batch
