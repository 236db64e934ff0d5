"""What engine and worker tell each other beside the steps: the worker's hello, the engine's limits, the registration.

Each message travels as one ZeroMQ frame; the tag says which one it is. Nothing is ever pickled.
"""

import msgspec

from engine_core.step_plan import StepPlan, StepResult

PROTOCOL = 1


class SamplingDefaults(msgspec.Struct, frozen=True):
    """From generation_config.json; what it leaves out is OpenAI's default."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None


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


class WorkerHello(msgspec.Struct, tag="hello"):
    protocol: int
    epoch: int
    rank: int


class EngineLimits(msgspec.Struct, tag="limits"):
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
    """The engine cannot work with this worker, which ends; the message is for people."""

    message: str


class Ping(msgspec.Struct, tag="ping"):
    """Nothing but a proof that the worker can be reached; it gives no answer."""


WorkerMessage = WorkerHello | Register | StepDone
EngineMessage = EngineLimits | Step | Ping | Refused

encode = msgspec.msgpack.Encoder().encode
decode_from_worker = msgspec.msgpack.Decoder(WorkerMessage).decode
decode_from_engine = msgspec.msgpack.Decoder(EngineMessage).decode
