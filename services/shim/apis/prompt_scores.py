"""The logprobs of one prompt as JSON: vLLM's `prompt_logprobs`, and for `echo` the first of a completion's `logprobs`.

Choice 0 of the prompt's call brings them, for all choices. They are written as they come, with pauses, and kept as
JSON: as objects they would take several times as much memory.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from services.rpc.columns import unpack_f32, unpack_u32
from services.rpc.generated import text_pb2
from services.shim.apis.answer_options import AnswerOptions
from services.shim.apis.json_pieces import WrittenColumns
from services.shim.apis.numbers import finite
from services.shim.text_call import TextCall
from services.shim.time_slices import TimeSlices

ENTRIES_PER_STEP = 32 * 21  # a millisecond
FIELD = "prompt_logprobs"
ECHOED = ("tokens", "token_logprobs", "top_logprobs", "text_offset")  # a completion's logprobs


class Entry(NamedTuple):
    token_id: int
    text: str
    logprob: float


class ScoredToken(NamedTuple):
    """A prompt token with its rank in the vocabulary and its entries: its own first, then the most likely ones."""

    entries: list[Entry]
    rank: int
    text_offset: int


class PromptScores:
    def __init__(self, call: TextCall, options: AnswerOptions) -> None:
        self._call = call
        self._options = options
        self._num_tokens = 0
        self.written = WrittenColumns()  # with FIELD, if the response shows it, and a completion's columns, for `echo`

    @property
    def is_complete(self) -> bool:
        """Whether all have come. The call must be accepted."""
        return max(1, self._num_tokens) == self._call.num_prompt_tokens

    async def add(self, messages: Sequence[text_pb2.TextPromptLogprobs], slices: TimeSlices) -> int:
        """Writes the logprobs of further tokens, with pauses. Returns by how many bytes the JSON grew."""
        size = self.begin()
        for message in messages:
            tokens = _tokens(message)
            count = max(1, ENTRIES_PER_STEP // message.logprobs.width)
            while step := list(islice(tokens, count)):
                size += self.written.add(self._columns(step))
                self._num_tokens += len(step)
                await slices.pause()
        return size

    def begin(self) -> int:
        """Writes the prompt's first token, which has no logprobs, unless it is written. Returns as `add`."""
        if self._num_tokens:
            return 0
        self._num_tokens = 1
        text = self._call.first_prompt_token.decode(errors="replace")
        columns: dict[str, Any] = {FIELD: [None]} if self._options.prompt_logprobs else {}
        if self._options.echoes_logprobs:
            token_id = unpack_u32(self._call.prompt_token_ids[:4])[0]
            columns |= {
                "tokens": [self._options.token_text(token_id, text)],
                "token_logprobs": [None],
                "top_logprobs": [None],
                "text_offset": [0],
            }
        return self.written.add(columns)

    def _columns(self, tokens: Sequence[ScoredToken]) -> dict[str, Any]:
        columns: dict[str, Any] = {}
        if self._options.prompt_logprobs:
            columns[FIELD] = list(map(_by_id, tokens))
        if self._options.echoes_logprobs:
            name = self._options.token_text
            columns |= {
                "tokens": [name(own.token_id, own.text) for (own, *_), _, _ in tokens],
                "token_logprobs": [finite(own.logprob) for (own, *_), _, _ in tokens],
                "top_logprobs": [
                    {name(one.token_id, one.text): finite(one.logprob) for one in (*top, own)}
                    for (own, *top), _, _ in tokens
                ],
                "text_offset": [token.text_offset for token in tokens],
            }
        return columns


def _by_id(token: ScoredToken) -> dict[str, dict[str, Any]]:
    """Returns vLLM's object of a prompt token."""
    own, *top = token.entries
    found = {str(own.token_id): _described(own, token.rank)}
    for rank, one in enumerate(top, 1):
        found.setdefault(str(one.token_id), _described(one, rank))
    return found


def _described(entry: Entry, rank: int) -> dict[str, Any]:
    return {"logprob": finite(entry.logprob), "rank": rank, "decoded_token": entry.text}


def _tokens(message: text_pb2.TextPromptLogprobs) -> Iterator[ScoredToken]:
    columns = message.logprobs
    ids, logprobs, ranks = unpack_u32(columns.token_ids), unpack_f32(columns.logprobs), unpack_u32(columns.ranks)
    texts = dict(zip(unpack_u32(message.token_ids), message.tokens, strict=True))
    offsets = unpack_u32(message.text_offsets) or [0] * len(ranks)
    width = columns.width
    for index, (rank, offset) in enumerate(zip(ranks, offsets, strict=True)):
        span = slice(index * width, (index + 1) * width)
        entries = [
            Entry(token_id, texts[token_id].decode(errors="replace"), logprob)
            for token_id, logprob in zip(ids[span], logprobs[span], strict=True)
        ]
        yield ScoredToken(entries, rank, offset)
