"""What passes between engine and worker at each step, as msgspec structs (MessagePack arrays on the wire).

A worker keeps the requests of its batch in slots that the engine assigns. A plan brings new requests in full and says
of the rest only what changed. Fields are only ever added at the end, with a default: an older reader skips them, a
newer one fills them in. Columns are little-endian int32 as bytes, one row per scheduled request.
"""

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

ITEM_BYTES = 4


class BadMessage(ValueError):
    """A message is malformed, has values out of range, or does not follow from the messages before it.

    The text is one line for people, and quotes no bytes of the message.
    """


def pack_i32(values: list[int] | npt.NDArray[Any]) -> bytes:
    """Ints in [-2**31, 2**31) as little-endian int32."""
    return np.asarray(values, dtype="<i4").tobytes()


def unpack_i32(column: bytes) -> npt.NDArray[np.int32]:
    """Read-only view of a column, [rows] int32."""
    return np.frombuffer(column, dtype="<i4")


def checked_column(name: str, data: bytes, highest: int) -> npt.NDArray[np.uint32]:
    """Read-only view of a column of a peer, [rows]. Raises BadMessage for a value that is not from 0 to `highest`.

    Reads it as unsigned, so that one comparison also finds negative numbers.
    """
    if len(data) % ITEM_BYTES:
        raise BadMessage(f"{name}: {len(data)} bytes are no column")
    column = np.frombuffer(data, dtype="<u4")
    if column.max(initial=0) > highest:
        value = int(unpack_i32(data)[column.argmax()])
        raise BadMessage(f"{name}: {value} is not from 0 to {highest}")
    return column


class SamplingParams(msgspec.Struct, array_like=True, frozen=True):
    """How one choice is sampled and when it ends; every default of the model is already filled in."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    eos_token_ids: tuple[int, ...] = ()  # empty under ignore_eos
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None  # top logprobs beside the sampled token's; None: none at all


class NewRequest(msgspec.Struct, array_like=True):
    """A request that the worker does not have, or not any more after a preemption."""

    handle: int
    slot: int
    prompt_token_ids: bytes
    output_token_ids: bytes
    block_ids: list[bytes]  # one column per KV group
    sampling: SamplingParams
    seed: int
    choice: int
    traceparent: str = ""  # W3C trace context; empty: not traced


class StepPlan(msgspec.Struct, array_like=True):
    """One forward pass. `base_step_id` is the step that the diff builds on; None: forget every slot first."""

    epoch: int
    step_id: int
    base_step_id: int | None
    released_slots: list[int]
    new_requests: list[NewRequest]
    slots: bytes
    num_new_tokens: bytes
    num_computed_tokens: bytes
    output_indices: bytes  # index of the output token that the row would sample
    sampled: bytes  # 1 where the row's last token is the worker's last one, so that a next is drawn
    block_offsets: list[bytes]  # per KV group: [rows + 1], where each row's new blocks begin in block_ids
    block_ids: list[bytes]  # per KV group: blocks appended to the rows' block tables
    deadline_ms: int = 0  # what it may take, from its start; a worker that overruns it ends. 0: no deadline
    continues: bool = False  # some request could have run ever since the step before: what lies between is waste


class StepResult(msgspec.Struct, array_like=True):
    """What a step sampled, one row per request with new tokens."""

    epoch: int
    step_id: int
    handles: bytes
    start_indices: bytes
    counts: bytes
    token_ids: bytes
    logprob_widths: bytes  # per row: 0, or entries per token (the sampled token first, then the top ones)
    logprob_token_ids: bytes
    logprobs: bytes  # little-endian float32
    errors: list[tuple[int, str]] = []  # handle and what went wrong with that request alone
