from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_ABORT: _ClassVar[FinishReason]
    FINISH_REASON_ERROR: _ClassVar[FinishReason]
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_ABORT: FinishReason
FINISH_REASON_ERROR: FinishReason

class Hello(_message.Message):
    __slots__ = ("protocol", "role", "instance", "epoch", "tokenizer_digest", "engine")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    role: str
    instance: str
    epoch: int
    tokenizer_digest: str
    engine: EngineFacts
    def __init__(self, protocol: _Optional[int] = ..., role: _Optional[str] = ..., instance: _Optional[str] = ..., epoch: _Optional[int] = ..., tokenizer_digest: _Optional[str] = ..., engine: _Optional[_Union[EngineFacts, _Mapping]] = ...) -> None: ...

class EngineFacts(_message.Message):
    __slots__ = ("served_model_names", "max_model_len", "vocab_size", "eos_token_ids", "block_size", "kv_groups", "limits", "numerics_id", "weights_version", "model", "default_sampling", "kv_cache_tokens")
    SERVED_MODEL_NAMES_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    KV_GROUPS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_ID_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_SAMPLING_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    served_model_names: _containers.RepeatedScalarFieldContainer[str]
    max_model_len: int
    vocab_size: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    block_size: int
    kv_groups: _containers.RepeatedCompositeFieldContainer[KvGroup]
    limits: RequestLimits
    numerics_id: str
    weights_version: str
    model: str
    default_sampling: SamplingParams
    kv_cache_tokens: int
    def __init__(self, served_model_names: _Optional[_Iterable[str]] = ..., max_model_len: _Optional[int] = ..., vocab_size: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., block_size: _Optional[int] = ..., kv_groups: _Optional[_Iterable[_Union[KvGroup, _Mapping]]] = ..., limits: _Optional[_Union[RequestLimits, _Mapping]] = ..., numerics_id: _Optional[str] = ..., weights_version: _Optional[str] = ..., model: _Optional[str] = ..., default_sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., kv_cache_tokens: _Optional[int] = ...) -> None: ...

class KvGroup(_message.Message):
    __slots__ = ("kind", "num_blocks", "window")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    kind: str
    num_blocks: int
    window: int
    def __init__(self, kind: _Optional[str] = ..., num_blocks: _Optional[int] = ..., window: _Optional[int] = ...) -> None: ...

class RequestLimits(_message.Message):
    __slots__ = ("max_logprobs", "max_n", "max_num_seqs", "max_num_queued_reqs", "max_stop_token_ids", "max_logit_bias", "max_logprob_token_ids", "max_bad_words")
    MAX_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MAX_N_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_QUEUED_REQS_FIELD_NUMBER: _ClassVar[int]
    MAX_STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    MAX_LOGPROB_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    max_logprobs: int
    max_n: int
    max_num_seqs: int
    max_num_queued_reqs: int
    max_stop_token_ids: int
    max_logit_bias: int
    max_logprob_token_ids: int
    max_bad_words: int
    def __init__(self, max_logprobs: _Optional[int] = ..., max_n: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., max_num_queued_reqs: _Optional[int] = ..., max_stop_token_ids: _Optional[int] = ..., max_logit_bias: _Optional[int] = ..., max_logprob_token_ids: _Optional[int] = ..., max_bad_words: _Optional[int] = ...) -> None: ...

class Choice(_message.Message):
    __slots__ = ("handle", "choice", "resumed_token_ids", "cached_tokens", "prompt_logprobs_from")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    RESUMED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FROM_FIELD_NUMBER: _ClassVar[int]
    handle: int
    choice: int
    resumed_token_ids: bytes
    cached_tokens: int
    prompt_logprobs_from: int
    def __init__(self, handle: _Optional[int] = ..., choice: _Optional[int] = ..., resumed_token_ids: _Optional[bytes] = ..., cached_tokens: _Optional[int] = ..., prompt_logprobs_from: _Optional[int] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "max_tokens", "min_tokens", "ignore_eos", "stop_token_ids", "logprobs", "logit_bias_token_ids", "logit_biases", "allowed_token_ids", "bad_words_token_ids", "logprob_token_ids", "thinking_budget", "prompt_logprobs")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIASES_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    THINKING_BUDGET_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: int
    logit_bias_token_ids: bytes
    logit_biases: bytes
    allowed_token_ids: bytes
    bad_words_token_ids: _containers.RepeatedScalarFieldContainer[bytes]
    logprob_token_ids: bytes
    thinking_budget: ThinkingBudget
    prompt_logprobs: int
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., ignore_eos: bool = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[int] = ..., logit_bias_token_ids: _Optional[bytes] = ..., logit_biases: _Optional[bytes] = ..., allowed_token_ids: _Optional[bytes] = ..., bad_words_token_ids: _Optional[_Iterable[bytes]] = ..., logprob_token_ids: _Optional[bytes] = ..., thinking_budget: _Optional[_Union[ThinkingBudget, _Mapping]] = ..., prompt_logprobs: _Optional[int] = ...) -> None: ...

class ThinkingBudget(_message.Message):
    __slots__ = ("max_tokens", "start_token_ids", "end_token_ids", "starts_open")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    START_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    END_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    STARTS_OPEN_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    start_token_ids: bytes
    end_token_ids: bytes
    starts_open: bool
    def __init__(self, max_tokens: _Optional[int] = ..., start_token_ids: _Optional[bytes] = ..., end_token_ids: _Optional[bytes] = ..., starts_open: bool = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("handle", "start_index", "width", "token_ids", "logprobs", "ranks")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    START_INDEX_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    start_index: int
    width: int
    token_ids: bytes
    logprobs: bytes
    ranks: bytes
    def __init__(self, handle: _Optional[int] = ..., start_index: _Optional[int] = ..., width: _Optional[int] = ..., token_ids: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ..., ranks: _Optional[bytes] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "message", "param", "retryable", "retry_after", "reason")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PARAM_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    param: str
    retryable: bool
    retry_after: int
    reason: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., param: _Optional[str] = ..., retryable: bool = ..., retry_after: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class StartLockGranted(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResetPrefixCacheRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResetPrefixCacheResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Abort(_message.Message):
    __slots__ = ("handle",)
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    handle: int
    def __init__(self, handle: _Optional[int] = ...) -> None: ...

class GetModelInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("facts", "version", "tokenizer_digest", "model_type", "architectures", "bos_token_id", "pad_token_id")
    FACTS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    MODEL_TYPE_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURES_FIELD_NUMBER: _ClassVar[int]
    BOS_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    PAD_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    facts: EngineFacts
    version: str
    tokenizer_digest: str
    model_type: str
    architectures: _containers.RepeatedScalarFieldContainer[str]
    bos_token_id: int
    pad_token_id: int
    def __init__(self, facts: _Optional[_Union[EngineFacts, _Mapping]] = ..., version: _Optional[str] = ..., tokenizer_digest: _Optional[str] = ..., model_type: _Optional[str] = ..., architectures: _Optional[_Iterable[str]] = ..., bos_token_id: _Optional[int] = ..., pad_token_id: _Optional[int] = ...) -> None: ...

class ResumedChoice(_message.Message):
    __slots__ = ("index", "token_ids", "prompt_logprobs_from")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FROM_FIELD_NUMBER: _ClassVar[int]
    index: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    prompt_logprobs_from: int
    def __init__(self, index: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., prompt_logprobs_from: _Optional[int] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "output_tokens", "cached_tokens", "reasoning_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASONING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., reasoning_tokens: _Optional[int] = ...) -> None: ...
