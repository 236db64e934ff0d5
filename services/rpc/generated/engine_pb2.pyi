from services.rpc.generated import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EngineDown(_message.Message):
    __slots__ = ("hello", "entries")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    hello: _common_pb2.Hello
    entries: _containers.RepeatedCompositeFieldContainer[EngineEntry]
    def __init__(self, hello: _Optional[_Union[_common_pb2.Hello, _Mapping]] = ..., entries: _Optional[_Iterable[_Union[EngineEntry, _Mapping]]] = ...) -> None: ...

class EngineEntry(_message.Message):
    __slots__ = ("submit", "abort")
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    submit: Submit
    abort: _common_pb2.Abort
    def __init__(self, submit: _Optional[_Union[Submit, _Mapping]] = ..., abort: _Optional[_Union[_common_pb2.Abort, _Mapping]] = ...) -> None: ...

class Submit(_message.Message):
    __slots__ = ("request_id", "attempt", "prompt_token_ids", "seed", "choices", "sampling", "cache_salt", "traceparent", "priority", "alone", "return_sampling", "grammar", "cache_group", "numerics_id", "trial_tokens", "waited_ms")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ALONE_FIELD_NUMBER: _ClassVar[int]
    RETURN_SAMPLING_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    CACHE_GROUP_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_ID_FIELD_NUMBER: _ClassVar[int]
    TRIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WAITED_MS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    prompt_token_ids: bytes
    seed: int
    choices: _containers.RepeatedCompositeFieldContainer[_common_pb2.Choice]
    sampling: _common_pb2.SamplingParams
    cache_salt: str
    traceparent: str
    priority: int
    alone: bool
    return_sampling: bool
    grammar: str
    cache_group: str
    numerics_id: str
    trial_tokens: int
    waited_ms: int
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., prompt_token_ids: _Optional[bytes] = ..., seed: _Optional[int] = ..., choices: _Optional[_Iterable[_Union[_common_pb2.Choice, _Mapping]]] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., cache_salt: _Optional[str] = ..., traceparent: _Optional[str] = ..., priority: _Optional[int] = ..., alone: bool = ..., return_sampling: bool = ..., grammar: _Optional[str] = ..., cache_group: _Optional[str] = ..., numerics_id: _Optional[str] = ..., trial_tokens: _Optional[int] = ..., waited_ms: _Optional[int] = ...) -> None: ...

class EngineUp(_message.Message):
    __slots__ = ("hello", "step", "ready", "served")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    SERVED_FIELD_NUMBER: _ClassVar[int]
    hello: _common_pb2.Hello
    step: StepBatch
    ready: bool
    served: bool
    def __init__(self, hello: _Optional[_Union[_common_pb2.Hello, _Mapping]] = ..., step: _Optional[_Union[StepBatch, _Mapping]] = ..., ready: bool = ..., served: bool = ...) -> None: ...

class StepBatch(_message.Message):
    __slots__ = ("epoch", "step_id", "accepted", "handles", "start_indices", "counts", "logprob_widths", "token_ids", "logprob_token_ids", "logprobs", "terminals", "stats", "prompt_logprobs")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    START_INDICES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_WIDTHS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TERMINALS_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step_id: int
    accepted: _containers.RepeatedCompositeFieldContainer[Accepted]
    handles: bytes
    start_indices: bytes
    counts: bytes
    logprob_widths: bytes
    token_ids: bytes
    logprob_token_ids: bytes
    logprobs: bytes
    terminals: _containers.RepeatedCompositeFieldContainer[Terminal]
    stats: EngineStats
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.PromptLogprobs]
    def __init__(self, epoch: _Optional[int] = ..., step_id: _Optional[int] = ..., accepted: _Optional[_Iterable[_Union[Accepted, _Mapping]]] = ..., handles: _Optional[bytes] = ..., start_indices: _Optional[bytes] = ..., counts: _Optional[bytes] = ..., logprob_widths: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ..., logprob_token_ids: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ..., terminals: _Optional[_Iterable[_Union[Terminal, _Mapping]]] = ..., stats: _Optional[_Union[EngineStats, _Mapping]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[_common_pb2.PromptLogprobs, _Mapping]]] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("handle", "seed", "prompt_tokens", "cached_tokens", "sampling", "numerics_id")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_ID_FIELD_NUMBER: _ClassVar[int]
    handle: int
    seed: int
    prompt_tokens: int
    cached_tokens: int
    sampling: _common_pb2.SamplingParams
    numerics_id: str
    def __init__(self, handle: _Optional[int] = ..., seed: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., numerics_id: _Optional[str] = ...) -> None: ...

class Terminal(_message.Message):
    __slots__ = ("handle", "reason", "stop_token_id", "prompt_tokens", "output_tokens", "cached_tokens", "error", "numerics_id", "weights_version")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_ID_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_VERSION_FIELD_NUMBER: _ClassVar[int]
    handle: int
    reason: _common_pb2.FinishReason
    stop_token_id: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    error: _common_pb2.Error
    numerics_id: str
    weights_version: str
    def __init__(self, handle: _Optional[int] = ..., reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., stop_token_id: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., numerics_id: _Optional[str] = ..., weights_version: _Optional[str] = ...) -> None: ...

class GetStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EngineStats(_message.Message):
    __slots__ = ("num_running", "num_waiting", "waiting_tokens", "num_free_blocks", "num_blocks", "num_steps", "num_preemptions", "prefix_cache_queries", "prefix_cache_hits", "num_chunked_rows", "num_scheduled_tokens", "num_steps_ahead", "num_deferred", "num_output_tokens")
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    WAITING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHE_QUERIES_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHE_HITS_FIELD_NUMBER: _ClassVar[int]
    NUM_CHUNKED_ROWS_FIELD_NUMBER: _ClassVar[int]
    NUM_SCHEDULED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_AHEAD_FIELD_NUMBER: _ClassVar[int]
    NUM_DEFERRED_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    num_running: int
    num_waiting: int
    waiting_tokens: int
    num_free_blocks: int
    num_blocks: int
    num_steps: int
    num_preemptions: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    num_chunked_rows: int
    num_scheduled_tokens: int
    num_steps_ahead: int
    num_deferred: int
    num_output_tokens: int
    def __init__(self, num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., waiting_tokens: _Optional[int] = ..., num_free_blocks: _Optional[int] = ..., num_blocks: _Optional[int] = ..., num_steps: _Optional[int] = ..., num_preemptions: _Optional[int] = ..., prefix_cache_queries: _Optional[int] = ..., prefix_cache_hits: _Optional[int] = ..., num_chunked_rows: _Optional[int] = ..., num_scheduled_tokens: _Optional[int] = ..., num_steps_ahead: _Optional[int] = ..., num_deferred: _Optional[int] = ..., num_output_tokens: _Optional[int] = ...) -> None: ...

class GenerateTokensRequest(_message.Message):
    __slots__ = ("request_id", "prompt_token_ids", "n", "stream", "seed", "sampling", "cache_salt", "priority", "return_sampling", "resume", "grammar", "cache_group")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    RETURN_SAMPLING_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    CACHE_GROUP_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    n: int
    stream: bool
    seed: int
    sampling: _common_pb2.SamplingParams
    cache_salt: str
    priority: int
    return_sampling: bool
    resume: TokensResume
    grammar: str
    cache_group: str
    def __init__(self, request_id: _Optional[str] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., n: _Optional[int] = ..., stream: bool = ..., seed: _Optional[int] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., cache_salt: _Optional[str] = ..., priority: _Optional[int] = ..., return_sampling: bool = ..., resume: _Optional[_Union[TokensResume, _Mapping]] = ..., grammar: _Optional[str] = ..., cache_group: _Optional[str] = ...) -> None: ...

class TokensResume(_message.Message):
    __slots__ = ("started", "choices")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    started: TokensStarted
    choices: _containers.RepeatedCompositeFieldContainer[_common_pb2.ResumedChoice]
    def __init__(self, started: _Optional[_Union[TokensStarted, _Mapping]] = ..., choices: _Optional[_Iterable[_Union[_common_pb2.ResumedChoice, _Mapping]]] = ...) -> None: ...

class GenerateTokensResponse(_message.Message):
    __slots__ = ("started", "choices", "usage", "prompt_logprobs")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    started: TokensStarted
    choices: _containers.RepeatedCompositeFieldContainer[TokensDelta]
    usage: _common_pb2.Usage
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.PromptLogprobs]
    def __init__(self, started: _Optional[_Union[TokensStarted, _Mapping]] = ..., choices: _Optional[_Iterable[_Union[TokensDelta, _Mapping]]] = ..., usage: _Optional[_Union[_common_pb2.Usage, _Mapping]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[_common_pb2.PromptLogprobs, _Mapping]]] = ...) -> None: ...

class TokensStarted(_message.Message):
    __slots__ = ("seed", "cached_tokens", "numerics_id", "sampling")
    SEED_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_ID_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    seed: int
    cached_tokens: int
    numerics_id: str
    sampling: _common_pb2.SamplingParams
    def __init__(self, seed: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., numerics_id: _Optional[str] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ...) -> None: ...

class TokensDelta(_message.Message):
    __slots__ = ("index", "token_ids", "logprob_width", "logprob_token_ids", "logprobs", "finish_reason", "stop_token_id")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_WIDTH_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    index: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprob_width: int
    logprob_token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    finish_reason: _common_pb2.FinishReason
    stop_token_id: int
    def __init__(self, index: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprob_width: _Optional[int] = ..., logprob_token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., finish_reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., stop_token_id: _Optional[int] = ...) -> None: ...
