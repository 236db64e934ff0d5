"""What engine and worker tell each other beside the steps: the worker's hello, the engine's limits, the registration.

Each message travels as one ZeroMQ frame; the tag says which one it is. Nothing is ever pickled. What comes in is
checked here as far as a message can be by itself: its form, and the ranges of what is said once.
"""

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from engine_core.step_plan import BadMessage, StepPlan, StepResult

PROTOCOL = 1
MAX_BLOCKS = 2**21  # of a KV cache: at 16 tokens each, 34 million tokens
MAX_CHARACTERS = 4096  # of a name, which may be a path
MAX_DEFAULT = 1e6  # of a sampling default
MAX_NAMES = 1024
MAX_IDS = 1024  # eos token ids
MAX_LENGTH = 2**31 - 1  # of a request, in tokens; of a vocabulary
MAX_KV_GROUPS = 64


class SamplingDefaults(msgspec.Struct, frozen=True):
    """From generation_config.json; what it leaves out is OpenAI's default."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for what is no number, or none that anything is sampled with."""
        numbers = (self.temperature, self.top_p, self.top_k, self.min_p, self.repetition_penalty)
        if not all(-1 <= number <= MAX_DEFAULT for number in numbers):  # also refuses NaN
            raise ValueError("sampling_defaults are out of range")


class ModelFacts(msgspec.Struct, frozen=True):
    """What the processes above need to know of the model; nobody else reads its configuration."""

    served_model_names: tuple[str, ...]
    max_model_len: int  # prompt plus output, in tokens
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    block_size: int  # tokens
    num_blocks: int
    kv_groups: tuple[str, ...]  # kinds, for example ("full",)
    max_logprobs: int
    sampling_defaults: SamplingDefaults
    tokenizer_digest: str
    numerics_id: str
    weights_version: str

    def __post_init__(self) -> None:
        """Raises ValueError for values out of range."""
        ranges = (
            ("served_model_names", len(self.served_model_names), 1, MAX_NAMES),
            ("max_model_len", self.max_model_len, 1, MAX_LENGTH),
            ("vocab_size", self.vocab_size, 1, MAX_LENGTH),
            ("eos_token_ids", len(self.eos_token_ids), 0, MAX_IDS),
            ("block_size", self.block_size, 1, MAX_LENGTH),
            ("num_blocks", self.num_blocks, 1, MAX_BLOCKS),
            ("kv_groups", len(self.kv_groups), 1, MAX_KV_GROUPS),
            ("max_logprobs", self.max_logprobs, 0, self.vocab_size),
        )
        for name, value, low, high in ranges:
            if not low <= value <= high:
                raise ValueError(f"{name} is {value}, but must be from {low} to {high}")
        names = (
            *self.served_model_names,
            *self.kv_groups,
            self.tokenizer_digest,
            self.numerics_id,
            self.weights_version,
        )
        if max(map(len, names)) > MAX_CHARACTERS:
            raise ValueError(f"a name has more than {MAX_CHARACTERS} characters")
        if not all(0 <= token_id < self.vocab_size for token_id in self.eos_token_ids):
            raise ValueError("eos_token_ids: not all are in the vocabulary")


class WorkerHello(msgspec.Struct, tag="hello"):
    protocol: int
    epoch: int
    rank: int


class BatchLimits(msgspec.Struct, tag="limits"):
    """The engine's answer to the hello: what the worker must have room for."""

    protocol: int
    max_num_seqs: int
    max_num_batched_tokens: int


class Register(msgspec.Struct, tag="register"):
    """The worker is loaded and waits for plans of this epoch."""

    epoch: int
    facts: ModelFacts


class Step(msgspec.Struct, tag="step"):
    plan: StepPlan


class StepDone(msgspec.Struct, tag="done"):
    result: StepResult


class Refused(msgspec.Struct, tag="refused"):
    """The engine does not work with this worker; the message is for people."""

    message: str
    for_now: bool = False  # it may come again; else it ends


class Ping(msgspec.Struct, tag="ping"):
    """Nothing but a proof that the worker can be reached; it gives no answer."""


MessageT = TypeVar("MessageT")
WorkerMessage = WorkerHello | Register | StepDone
EngineMessage = BatchLimits | Step | Ping | Refused

encode = msgspec.msgpack.Encoder().encode
_from_worker: "msgspec.msgpack.Decoder[WorkerMessage]" = msgspec.msgpack.Decoder(WorkerMessage)
_from_engine: "msgspec.msgpack.Decoder[EngineMessage]" = msgspec.msgpack.Decoder(EngineMessage)


def decode_from_worker(frames: Sequence[bytes]) -> WorkerMessage:
    """Raises BadMessage."""
    return _decode(_from_worker, frames)


def decode_from_engine(frames: Sequence[bytes]) -> EngineMessage:
    """Raises BadMessage."""
    return _decode(_from_engine, frames)


def _decode(decoder: "msgspec.msgpack.Decoder[MessageT]", frames: Sequence[bytes]) -> MessageT:
    if len(frames) != 1:
        raise BadMessage(f"a message has one frame, and this one has {len(frames)}")
    try:
        return decoder.decode(frames[0])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, MemoryError) as error:
        raise BadMessage(f"no message of this protocol: {type(error).__name__}") from error
