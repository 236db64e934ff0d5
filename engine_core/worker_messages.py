"""The messages between engine and worker, and their encoding: hello, limits, registration, steps.

Each message is one ZeroMQ frame of MessagePack; its tag names the type. Nothing is ever pickled. Decoding checks what
one message can show: its form, and the ranges of ModelFacts. Plans and results are checked elsewhere.
"""

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from engine_core.kv_cache_size import KvCacheSize
from engine_core.kv_groups import KvGroup, most_blocks
from engine_core.step_plan import BadMessage, StepPlan, StepResult

PROTOCOL = 7  # 7: the size of the first KV cache
MAX_BLOCKS = 2**21  # blocks of a KV cache; at 16 tokens each, 34 million tokens
MAX_CHARACTERS = 4096  # characters of a name, which may be a path
MAX_DEFAULT = 1e6  # largest sampling default
MAX_NAMES = 1024  # served model names
MAX_IDS = 1024  # eos token ids
MAX_LENGTH = 2**31 - 1  # tokens of a request, a block or a vocabulary
MAX_KV_GROUPS = 64


class SamplingDefaults(msgspec.Struct, frozen=True):
    """Values for what a request leaves out: from generation_config.json, or else the OpenAI API's defaults."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        """Raises ValueError unless all values but max_tokens are from -1 to MAX_DEFAULT."""
        numbers = (self.temperature, self.top_p, self.top_k, self.min_p, self.repetition_penalty)
        if not all(-1 <= number <= MAX_DEFAULT for number in numbers):  # also refuses NaN
            raise ValueError(f"sampling_defaults: a value is not from -1 to {MAX_DEFAULT:g}")


class ModelFacts(msgspec.Struct, frozen=True):
    """What engine, tokenizer and shim need to know about the model. Only the worker reads its config.json."""

    served_model_names: tuple[str, ...]
    max_model_len: int  # prompt plus output, in tokens
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    block_size: int  # tokens
    num_blocks: int
    kv_groups: tuple[KvGroup, ...]  # those that keep all blocks first
    max_logprobs: int
    sampling_defaults: SamplingDefaults
    tokenizer_digest: str  # of the tokenizer's files; the tokenizer process must have the same
    numerics_id: str  # names what affects results: equal ids give equal tokens
    weights_version: str
    model: str = ""  # as the operator named it

    @property
    def kv_cache_concurrency(self) -> float:
        """How many requests of max_model_len tokens the KV cache has room for, as in vLLM."""
        return self.num_blocks / self.kv_cache_size.smallest

    @property
    def kv_cache_size(self) -> KvCacheSize:
        smallest = most_blocks(self.kv_groups, 0, self.max_model_len, self.block_size)
        return KvCacheSize(self.num_blocks, self.max_model_len, smallest)

    def __post_init__(self) -> None:
        """Raises ValueError for a value out of range, a name too long, or an eos token id outside the vocabulary."""
        ranges = (
            ("number of served_model_names", len(self.served_model_names), 1, MAX_NAMES),
            ("max_model_len", self.max_model_len, 1, MAX_LENGTH),
            ("vocab_size", self.vocab_size, 1, MAX_LENGTH),
            ("number of eos_token_ids", len(self.eos_token_ids), 0, MAX_IDS),
            ("block_size", self.block_size, 1, MAX_LENGTH),
            ("num_blocks", self.num_blocks, 1, MAX_BLOCKS),
            ("number of kv_groups", len(self.kv_groups), 1, MAX_KV_GROUPS),
            ("max_logprobs", self.max_logprobs, 0, self.vocab_size),
        )
        for name, value, low, high in ranges:
            if not low <= value <= high:
                raise ValueError(f"{name} is {value}, but must be from {low} to {high}")
        names = (
            *self.served_model_names,
            self.tokenizer_digest,
            self.numerics_id,
            self.weights_version,
            self.model,
        )
        if max(map(len, names)) > MAX_CHARACTERS:
            raise ValueError(f"a name has more than {MAX_CHARACTERS} characters")
        if not all(0 <= token_id < self.vocab_size for token_id in self.eos_token_ids):
            raise ValueError("eos_token_ids: not all are in the vocabulary")


class WorkerHello(msgspec.Struct, tag="hello"):
    """The first message of a worker, before it allocates memory. `epoch` identifies this connection of the worker.

    `is_intact`: it only lost its last connection, or the worker before it ended in order. No request of that time can
    have killed it.
    """

    protocol: int
    epoch: int
    rank: int
    is_intact: bool = False


class BatchLimits(msgspec.Struct, tag="limits"):
    """The engine's answer to WorkerHello: the largest step that the worker must allocate memory for.

    `kv_cache`: the size of the KV cache that the engine's first worker registered; None before.
    """

    protocol: int
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_cache: KvCacheSize | None = None


class Register(msgspec.Struct, tag="register"):
    """The worker has loaded the model and is ready for plans of this epoch."""

    epoch: int
    facts: ModelFacts


class Step(msgspec.Struct, tag="step"):
    """The engine sends the plan of a step."""

    plan: StepPlan


class StepDone(msgspec.Struct, tag="done"):
    """The worker has run a step."""

    result: StepResult


class Refused(msgspec.Struct, tag="refused"):
    """The engine refuses this worker. `message` is for the worker's log."""

    message: str
    for_now: bool = False  # True: the worker may try again later; False: it exits


class Ping(msgspec.Struct, tag="ping"):
    """Sent to find out whether the worker's routing id can still be reached. The worker does not answer."""


class PreparerHello(msgspec.Struct, tag="preparer"):
    """The first message of a worker's second socket, which belongs to its thread that prepares grammars.

    `epoch` is that of the worker's registration.
    """

    protocol: int
    epoch: int


class Prepare(msgspec.Struct, tag="prepare"):
    """The engine asks for what a request needs before it may run: its grammar, advanced by its output so far."""

    epoch: int
    handle: int
    grammar: str  # llguidance's form of Lark
    output_token_ids: bytes  # [output tokens so far] int32


class Prepared(msgspec.Struct, tag="prepared"):
    """A grammar is prepared, or cannot be: then `error` says why, and the request fails."""

    epoch: int
    handle: int
    error: str = ""
    is_complete: bool = False  # the output so far completes the grammar: the request ends without a step


MessageT = TypeVar("MessageT")
WorkerMessage = WorkerHello | Register | StepDone | PreparerHello | Prepared
EngineMessage = BatchLimits | Step | Ping | Refused | Prepare

encode = msgspec.msgpack.Encoder().encode
_from_worker: "msgspec.msgpack.Decoder[WorkerMessage]" = msgspec.msgpack.Decoder(WorkerMessage)
_from_engine: "msgspec.msgpack.Decoder[EngineMessage]" = msgspec.msgpack.Decoder(EngineMessage)


def decode_from_worker(frames: Sequence[bytes]) -> WorkerMessage:
    """Returns the one message of a worker that `frames` hold. Raises BadMessage if they do not."""
    return _decode(_from_worker, frames)


def decode_from_engine(frames: Sequence[bytes]) -> EngineMessage:
    """Returns the one message of the engine that `frames` hold. Raises BadMessage if they do not."""
    return _decode(_from_engine, frames)


def _decode(decoder: "msgspec.msgpack.Decoder[MessageT]", frames: Sequence[bytes]) -> MessageT:
    if len(frames) != 1:
        raise BadMessage(f"a message has one frame, but this one has {len(frames)}")
    try:
        return decoder.decode(frames[0])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, MemoryError) as error:
        raise BadMessage(f"not a message of this protocol: {type(error).__name__}") from error
