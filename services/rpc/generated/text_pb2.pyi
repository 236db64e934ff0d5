from services.rpc.generated import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TextDown(_message.Message):
    __slots__ = ("hello", "entries")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    hello: _common_pb2.Hello
    entries: _containers.RepeatedCompositeFieldContainer[TextEntry]
    def __init__(self, hello: _Optional[_Union[_common_pb2.Hello, _Mapping]] = ..., entries: _Optional[_Iterable[_Union[TextEntry, _Mapping]]] = ...) -> None: ...

class TextEntry(_message.Message):
    __slots__ = ("submit", "abort")
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    submit: TextSubmit
    abort: _common_pb2.Abort
    def __init__(self, submit: _Optional[_Union[TextSubmit, _Mapping]] = ..., abort: _Optional[_Union[_common_pb2.Abort, _Mapping]] = ...) -> None: ...

class TextSubmit(_message.Message):
    __slots__ = ("request_id", "attempt", "chat", "text", "prompt_token_ids", "seed", "choices", "sampling", "cache_salt", "stop", "include_stop_str_in_output", "skip_special_tokens", "traceparent", "priority", "alone")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STOP_STR_IN_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    SKIP_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ALONE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    chat: ChatInput
    text: TextInput
    prompt_token_ids: bytes
    seed: int
    choices: _containers.RepeatedCompositeFieldContainer[_common_pb2.Choice]
    sampling: _common_pb2.SamplingParams
    cache_salt: str
    stop: _containers.RepeatedScalarFieldContainer[str]
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    traceparent: str
    priority: int
    alone: bool
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., chat: _Optional[_Union[ChatInput, _Mapping]] = ..., text: _Optional[_Union[TextInput, _Mapping]] = ..., prompt_token_ids: _Optional[bytes] = ..., seed: _Optional[int] = ..., choices: _Optional[_Iterable[_Union[_common_pb2.Choice, _Mapping]]] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., cache_salt: _Optional[str] = ..., stop: _Optional[_Iterable[str]] = ..., include_stop_str_in_output: bool = ..., skip_special_tokens: bool = ..., traceparent: _Optional[str] = ..., priority: _Optional[int] = ..., alone: bool = ...) -> None: ...

class ChatInput(_message.Message):
    __slots__ = ("messages_json", "tools_json", "template_kwargs_json", "add_generation_prompt", "continue_final_message")
    MESSAGES_JSON_FIELD_NUMBER: _ClassVar[int]
    TOOLS_JSON_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_KWARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    ADD_GENERATION_PROMPT_FIELD_NUMBER: _ClassVar[int]
    CONTINUE_FINAL_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    messages_json: str
    tools_json: str
    template_kwargs_json: str
    add_generation_prompt: bool
    continue_final_message: bool
    def __init__(self, messages_json: _Optional[str] = ..., tools_json: _Optional[str] = ..., template_kwargs_json: _Optional[str] = ..., add_generation_prompt: bool = ..., continue_final_message: bool = ...) -> None: ...

class TextInput(_message.Message):
    __slots__ = ("text", "add_special_tokens")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ADD_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    text: str
    add_special_tokens: bool
    def __init__(self, text: _Optional[str] = ..., add_special_tokens: bool = ...) -> None: ...

class TextUp(_message.Message):
    __slots__ = ("hello", "batch")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    hello: _common_pb2.Hello
    batch: TextBatch
    def __init__(self, hello: _Optional[_Union[_common_pb2.Hello, _Mapping]] = ..., batch: _Optional[_Union[TextBatch, _Mapping]] = ...) -> None: ...

class TextBatch(_message.Message):
    __slots__ = ("epoch", "accepted", "events", "terminals")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    TERMINALS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    accepted: _containers.RepeatedCompositeFieldContainer[TextAccepted]
    events: _containers.RepeatedCompositeFieldContainer[TextEvent]
    terminals: _containers.RepeatedCompositeFieldContainer[TextTerminal]
    def __init__(self, epoch: _Optional[int] = ..., accepted: _Optional[_Iterable[_Union[TextAccepted, _Mapping]]] = ..., events: _Optional[_Iterable[_Union[TextEvent, _Mapping]]] = ..., terminals: _Optional[_Iterable[_Union[TextTerminal, _Mapping]]] = ...) -> None: ...

class TextAccepted(_message.Message):
    __slots__ = ("handle", "seed", "prompt_token_ids", "cached_tokens")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    seed: int
    prompt_token_ids: bytes
    cached_tokens: int
    def __init__(self, handle: _Optional[int] = ..., seed: _Optional[int] = ..., prompt_token_ids: _Optional[bytes] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class TextEvent(_message.Message):
    __slots__ = ("handle", "start_index", "token_ids", "logprobs", "content")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    START_INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    handle: int
    start_index: int
    token_ids: bytes
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    content: str
    def __init__(self, handle: _Optional[int] = ..., start_index: _Optional[int] = ..., token_ids: _Optional[bytes] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., content: _Optional[str] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("sampled", "top", "text_offset")
    SAMPLED_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    TEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    sampled: TokenLogprob
    top: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    text_offset: int
    def __init__(self, sampled: _Optional[_Union[TokenLogprob, _Mapping]] = ..., top: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ..., text_offset: _Optional[int] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("token", "token_bytes", "logprob")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    token: str
    token_bytes: bytes
    logprob: float
    def __init__(self, token: _Optional[str] = ..., token_bytes: _Optional[bytes] = ..., logprob: _Optional[float] = ...) -> None: ...

class TextTerminal(_message.Message):
    __slots__ = ("handle", "reason", "stop_string", "stop_token_id", "content", "prompt_tokens", "output_tokens", "cached_tokens", "error", "numerics_id", "weights_version")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_STRING_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_ID_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_VERSION_FIELD_NUMBER: _ClassVar[int]
    handle: int
    reason: _common_pb2.FinishReason
    stop_string: str
    stop_token_id: int
    content: str
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    error: _common_pb2.Error
    numerics_id: str
    weights_version: str
    def __init__(self, handle: _Optional[int] = ..., reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., stop_string: _Optional[str] = ..., stop_token_id: _Optional[int] = ..., content: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., numerics_id: _Optional[str] = ..., weights_version: _Optional[str] = ...) -> None: ...
