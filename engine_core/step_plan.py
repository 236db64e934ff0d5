"""The messages between engine and worker at each step, as msgspec structs (MessagePack arrays on the wire).

A worker keeps its requests in slots that the engine assigns. A plan has new requests in full, and of the others only
what changed. New fields go at the end and have a default: an older reader skips them, a newer one fills them in.
Columns are little-endian int32 as bytes, one row per scheduled request.
"""

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

ITEM_BYTES = 4
MAX_SCORED_TOKENS = 256  # of one step: prompt tokens with logprobs that running requests compute
SCORED_WIDTH = 21  # logprobs of one of them; one with more counts as several


class BadMessage(ValueError):
    """A message is malformed, has values out of range, or contradicts the messages before it.

    The text is one line for the log, and quotes no bytes of the message.
    """


def pack_i32(values: list[int] | npt.NDArray[Any]) -> bytes:
    """Returns `values`, each in [-2**31, 2**31), as a column: the bytes of little-endian int32."""
    return np.asarray(values, dtype="<i4").tobytes()


def unpack_i32(column: bytes) -> npt.NDArray[np.int32]:
    """Returns a read-only view of a column, [rows] int32. Raises ValueError unless it has 4 bytes per row."""
    return np.frombuffer(column, dtype="<i4")


def checked_column(name: str, data: bytes, highest: int) -> npt.NDArray[np.uint32]:
    """Returns a read-only view of the column `name` from a peer, [rows] uint32.

    Raises BadMessage unless it has 4 bytes per row and all values are from 0 to `highest`. Read as unsigned, negative
    values are above it too.
    """
    if len(data) % ITEM_BYTES:
        raise BadMessage(f"{name}: {len(data)} bytes, but a column has {ITEM_BYTES} bytes per row")
    column = np.frombuffer(data, dtype="<u4")
    if column.max(initial=0) > highest:
        value = int(unpack_i32(data)[column.argmax()])
        raise BadMessage(f"{name}: {value} is not from 0 to {highest}")
    return column


class ThinkingBudget(msgspec.Struct, array_like=True, frozen=True):
    """A limit on reasoning: after so many tokens its end is sampled. Columns are [ids] int32."""

    max_tokens: int  # between start and end
    start_token_ids: bytes  # empty: only the prompt begins reasoning
    end_token_ids: bytes
    starts_open: bool = False  # the output begins in reasoning


class SamplingParams(msgspec.Struct, array_like=True, frozen=True):
    """How one choice is sampled and when it ends. The model's defaults are already filled in.

    Lists that may be long are columns: [ids] int32 each, unless noted.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all tokens
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    eos_token_ids: tuple[int, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None  # top logprobs per token, besides the sampled token's own; None: no logprobs
    ignore_eos: bool = False  # eos_token_ids do not end the answer; min_tokens masks them all the same
    logit_bias_token_ids: bytes = b""  # different ids
    logit_biases: bytes = b""  # one per id: little-endian float32
    allowed_token_ids: bytes = b""  # the only ids that may be sampled; empty: all
    bad_words_token_ids: tuple[bytes, ...] = ()  # a sequence's last id is never sampled after the others, in the output
    logprob_token_ids: bytes = b""  # their logprobs take the place of the top ones, in this order
    thinking_budget: ThinkingBudget | None = None  # None: no limit
    prompt_logprobs: int | None = None  # top logprobs per prompt token, besides its own; None: none requested

    @property
    def ending_token_ids(self) -> tuple[int, ...]:
        """The ids that end the answer, once it has min_tokens."""
        return self.stop_token_ids if self.ignore_eos else (*self.eos_token_ids, *self.stop_token_ids)

    @property
    def num_bytes(self) -> int:
        """Bytes of the columns."""
        columns = (self.logit_bias_token_ids, self.logit_biases, self.allowed_token_ids, self.logprob_token_ids)
        budget = self.thinking_budget
        markers = () if budget is None else (budget.start_token_ids, budget.end_token_ids)
        return sum(map(len, (*columns, *self.bad_words_token_ids, *markers)))

    @property
    def logprob_width(self) -> int:
        """Logprobs per output token, the sampled token's included; 0: none requested."""
        if self.logprobs is None:
            return 0
        return 1 + (len(self.logprob_token_ids) // ITEM_BYTES or self.logprobs)

    @property
    def prompt_logprob_width(self) -> int:
        """Logprobs per prompt token, its own included; 0: none requested."""
        return 0 if self.prompt_logprobs is None else 1 + self.prompt_logprobs


class NewRequest(msgspec.Struct, array_like=True):
    """A request that the worker does not have: a new one, or one that runs again after a preemption or restart."""

    handle: int
    slot: int
    prompt_token_ids: bytes  # [prompt tokens]
    output_token_ids: bytes  # [output tokens so far]
    block_ids: list[bytes]  # per KV group: [blocks], from that of `first_blocks` on
    sampling: SamplingParams
    seed: int
    choice: int
    traceparent: str = ""  # W3C trace context; empty: not traced
    has_grammar: bool = False  # its grammar was prepared: worker_messages.Prepare
    prompt_logprobs_from: int = 1  # prompt tokens before this index need no logprobs
    first_blocks: list[int] = []  # per KV group: index of the first of block_ids; empty: 0 for each


class PromptLogprobs(msgspec.Struct, array_like=True, frozen=True):
    """Logprobs of consecutive prompt tokens of one request: `width` entries per token, its own first, then the most
    likely ones. The first token of a prompt has none."""

    handle: int
    start_index: int  # of the first of these tokens in the prompt
    width: int
    token_ids: bytes  # [tokens * width] int32
    logprobs: bytes  # [tokens * width] little-endian float32, natural logarithms
    ranks: bytes  # [tokens] int32: each token's own rank in the vocabulary; 1: the most likely

    @property
    def num_tokens(self) -> int:
        return len(self.ranks) // ITEM_BYTES


class StepPlan(msgspec.Struct, array_like=True):
    """One forward pass, as a diff to the plan of `base_step_id`. If that is None, the worker clears every slot first.

    Columns are [rows] int32, one row per scheduled request, unless noted. Rows with one new token come first.
    """

    epoch: int
    step_id: int
    base_step_id: int | None
    released_slots: list[int]
    new_requests: list[NewRequest]
    slots: bytes
    num_new_tokens: bytes
    num_computed_tokens: bytes
    output_indices: bytes  # output index of the token that the row samples, if it samples
    sampled: bytes  # 1 if the row samples: it computes the last of its known tokens; else 0
    block_offsets: list[bytes]  # per KV group: [rows + 1]; row i's blocks are block_ids[offsets[i] : offsets[i + 1]]
    block_ids: list[bytes]  # per KV group: [new blocks], appended to the rows' block tables
    deadline_ms: int = 0  # from the start of the step; the worker exits if the step takes longer. 0: no deadline
    was_runnable: bool = False  # a request could run since the last step: the gap counts as runnable time
    dropped_grammars: list[int] = []  # handles of requests that ended: what was prepared for them is dropped


class StepResult(msgspec.Struct, array_like=True):
    """What a step sampled. Columns are [rows] int32, one row per request with new tokens, unless noted."""

    epoch: int
    step_id: int
    handles: bytes
    start_indices: bytes  # output index of the row's first token
    counts: bytes  # tokens of the row
    token_ids: bytes  # [sum of counts]
    logprob_widths: bytes  # entries per token: the sampled token first, then the top or requested ones; 0: none
    logprob_token_ids: bytes  # [sum of counts * logprob_widths]
    logprobs: bytes  # like logprob_token_ids, but little-endian float32; natural logarithm
    errors: list[tuple[int, str]] = []  # handle of a request that failed alone, and why
    error_causes: list[str] = []  # one per error, of engine_core/row_errors.py; empty: as if each were ""
    completed: list[int] = []  # handles of rows whose token completes the request's grammar: nothing may follow it
    prompt_logprobs: list[PromptLogprobs] = []  # one per request whose prompt tokens with logprobs the step computed
