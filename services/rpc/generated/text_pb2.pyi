from services.rpc.generated import common_pb2 as _common_pb2
from services.rpc.generated import engine_pb2 as _engine_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ToolChoice(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOOL_CHOICE_NONE: _ClassVar[ToolChoice]
    TOOL_CHOICE_AUTO: _ClassVar[ToolChoice]
    TOOL_CHOICE_REQUIRED: _ClassVar[ToolChoice]
    TOOL_CHOICE_NAMED: _ClassVar[ToolChoice]

class PieceKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PIECE_KIND_CONTENT: _ClassVar[PieceKind]
    PIECE_KIND_REASONING: _ClassVar[PieceKind]
    PIECE_KIND_TOOL_CALL: _ClassVar[PieceKind]
    PIECE_KIND_TOOL_NAME: _ClassVar[PieceKind]
    PIECE_KIND_TOOL_ARGUMENTS: _ClassVar[PieceKind]
    PIECE_KIND_TOOL_CALL_END: _ClassVar[PieceKind]
TOOL_CHOICE_NONE: ToolChoice
TOOL_CHOICE_AUTO: ToolChoice
TOOL_CHOICE_REQUIRED: ToolChoice
TOOL_CHOICE_NAMED: ToolChoice
PIECE_KIND_CONTENT: PieceKind
PIECE_KIND_REASONING: PieceKind
PIECE_KIND_TOOL_CALL: PieceKind
PIECE_KIND_TOOL_NAME: PieceKind
PIECE_KIND_TOOL_ARGUMENTS: PieceKind
PIECE_KIND_TOOL_CALL_END: PieceKind

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
    __slots__ = ("request_id", "attempt", "chat", "text", "prompt_token_ids", "seed", "choices", "sampling", "cache_salt", "traceparent", "priority", "alone", "output", "resolved", "return_sampling", "truncation", "cache_group", "numerics_id", "trial_tokens", "waited_ms")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ALONE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    RESOLVED_FIELD_NUMBER: _ClassVar[int]
    RETURN_SAMPLING_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_FIELD_NUMBER: _ClassVar[int]
    CACHE_GROUP_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_ID_FIELD_NUMBER: _ClassVar[int]
    TRIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WAITED_MS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    chat: ChatInput
    text: TextInput
    prompt_token_ids: bytes
    seed: int
    choices: _containers.RepeatedCompositeFieldContainer[_common_pb2.Choice]
    sampling: _common_pb2.SamplingParams
    cache_salt: str
    traceparent: str
    priority: int
    alone: bool
    output: OutputSpec
    resolved: ResolvedOutput
    return_sampling: bool
    truncation: Truncation
    cache_group: str
    numerics_id: str
    trial_tokens: int
    waited_ms: int
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., chat: _Optional[_Union[ChatInput, _Mapping]] = ..., text: _Optional[_Union[TextInput, _Mapping]] = ..., prompt_token_ids: _Optional[bytes] = ..., seed: _Optional[int] = ..., choices: _Optional[_Iterable[_Union[_common_pb2.Choice, _Mapping]]] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., cache_salt: _Optional[str] = ..., traceparent: _Optional[str] = ..., priority: _Optional[int] = ..., alone: bool = ..., output: _Optional[_Union[OutputSpec, _Mapping]] = ..., resolved: _Optional[_Union[ResolvedOutput, _Mapping]] = ..., return_sampling: bool = ..., truncation: _Optional[_Union[Truncation, _Mapping]] = ..., cache_group: _Optional[str] = ..., numerics_id: _Optional[str] = ..., trial_tokens: _Optional[int] = ..., waited_ms: _Optional[int] = ...) -> None: ...

class ChatInput(_message.Message):
    __slots__ = ("messages_json", "template_kwargs_json", "add_generation_prompt", "continue_final_message", "chat_template", "documents_json", "add_special_tokens")
    MESSAGES_JSON_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_KWARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    ADD_GENERATION_PROMPT_FIELD_NUMBER: _ClassVar[int]
    CONTINUE_FINAL_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    ADD_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    messages_json: bytes
    template_kwargs_json: bytes
    add_generation_prompt: bool
    continue_final_message: bool
    chat_template: str
    documents_json: bytes
    add_special_tokens: bool
    def __init__(self, messages_json: _Optional[bytes] = ..., template_kwargs_json: _Optional[bytes] = ..., add_generation_prompt: bool = ..., continue_final_message: bool = ..., chat_template: _Optional[str] = ..., documents_json: _Optional[bytes] = ..., add_special_tokens: bool = ...) -> None: ...

class Truncation(_message.Message):
    __slots__ = ("max_tokens", "drop_end")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DROP_END_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    drop_end: bool
    def __init__(self, max_tokens: _Optional[int] = ..., drop_end: bool = ...) -> None: ...

class OutputSpec(_message.Message):
    __slots__ = ("stop", "include_stop_str_in_output", "skip_special_tokens", "spaces_between_special_tokens", "tools_json", "bad_words", "tool_choice", "single_tool_call", "separate_reasoning", "thinking_token_budget", "structured", "allowed_tools", "echo", "lead", "prompt_only", "token_ids_only")
    STOP_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STOP_STR_IN_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    SKIP_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SPACES_BETWEEN_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOOLS_JSON_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CHOICE_FIELD_NUMBER: _ClassVar[int]
    SINGLE_TOOL_CALL_FIELD_NUMBER: _ClassVar[int]
    SEPARATE_REASONING_FIELD_NUMBER: _ClassVar[int]
    THINKING_TOKEN_BUDGET_FIELD_NUMBER: _ClassVar[int]
    STRUCTURED_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOOLS_FIELD_NUMBER: _ClassVar[int]
    ECHO_FIELD_NUMBER: _ClassVar[int]
    LEAD_FIELD_NUMBER: _ClassVar[int]
    PROMPT_ONLY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_ONLY_FIELD_NUMBER: _ClassVar[int]
    stop: _containers.RepeatedScalarFieldContainer[str]
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    spaces_between_special_tokens: bool
    tools_json: bytes
    bad_words: _containers.RepeatedScalarFieldContainer[str]
    tool_choice: ToolChoice
    single_tool_call: bool
    separate_reasoning: bool
    thinking_token_budget: int
    structured: StructuredOutput
    allowed_tools: _containers.RepeatedScalarFieldContainer[str]
    echo: bool
    lead: str
    prompt_only: bool
    token_ids_only: bool
    def __init__(self, stop: _Optional[_Iterable[str]] = ..., include_stop_str_in_output: bool = ..., skip_special_tokens: bool = ..., spaces_between_special_tokens: bool = ..., tools_json: _Optional[bytes] = ..., bad_words: _Optional[_Iterable[str]] = ..., tool_choice: _Optional[_Union[ToolChoice, str]] = ..., single_tool_call: bool = ..., separate_reasoning: bool = ..., thinking_token_budget: _Optional[int] = ..., structured: _Optional[_Union[StructuredOutput, _Mapping]] = ..., allowed_tools: _Optional[_Iterable[str]] = ..., echo: bool = ..., lead: _Optional[str] = ..., prompt_only: bool = ..., token_ids_only: bool = ...) -> None: ...

class StructuredOutput(_message.Message):
    __slots__ = ("json_schema", "json_object", "regex", "choices", "grammar", "structural_tag", "strict", "whitespace_pattern", "field", "disable_any_whitespace", "disable_additional_properties")
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    JSON_OBJECT_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    STRUCTURAL_TAG_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    WHITESPACE_PATTERN_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    DISABLE_ANY_WHITESPACE_FIELD_NUMBER: _ClassVar[int]
    DISABLE_ADDITIONAL_PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    json_schema: bytes
    json_object: bool
    regex: str
    choices: TextChoices
    grammar: str
    structural_tag: bytes
    strict: bool
    whitespace_pattern: str
    field: str
    disable_any_whitespace: bool
    disable_additional_properties: bool
    def __init__(self, json_schema: _Optional[bytes] = ..., json_object: bool = ..., regex: _Optional[str] = ..., choices: _Optional[_Union[TextChoices, _Mapping]] = ..., grammar: _Optional[str] = ..., structural_tag: _Optional[bytes] = ..., strict: bool = ..., whitespace_pattern: _Optional[str] = ..., field: _Optional[str] = ..., disable_any_whitespace: bool = ..., disable_additional_properties: bool = ...) -> None: ...

class TextChoices(_message.Message):
    __slots__ = ("texts",)
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, texts: _Optional[_Iterable[str]] = ...) -> None: ...

class ResolvedOutput(_message.Message):
    __slots__ = ("bad_words_token_ids", "grammar", "ignored_keywords", "lead")
    BAD_WORDS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    IGNORED_KEYWORDS_FIELD_NUMBER: _ClassVar[int]
    LEAD_FIELD_NUMBER: _ClassVar[int]
    bad_words_token_ids: _containers.RepeatedScalarFieldContainer[bytes]
    grammar: str
    ignored_keywords: _containers.RepeatedScalarFieldContainer[str]
    lead: str
    def __init__(self, bad_words_token_ids: _Optional[_Iterable[bytes]] = ..., grammar: _Optional[str] = ..., ignored_keywords: _Optional[_Iterable[str]] = ..., lead: _Optional[str] = ...) -> None: ...

class TextInput(_message.Message):
    __slots__ = ("text", "add_special_tokens", "suffix")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ADD_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SUFFIX_FIELD_NUMBER: _ClassVar[int]
    text: str
    add_special_tokens: bool
    suffix: str
    def __init__(self, text: _Optional[str] = ..., add_special_tokens: bool = ..., suffix: _Optional[str] = ...) -> None: ...

class TextUp(_message.Message):
    __slots__ = ("hello", "batch", "ready", "served")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    SERVED_FIELD_NUMBER: _ClassVar[int]
    hello: _common_pb2.Hello
    batch: TextBatch
    ready: bool
    served: bool
    def __init__(self, hello: _Optional[_Union[_common_pb2.Hello, _Mapping]] = ..., batch: _Optional[_Union[TextBatch, _Mapping]] = ..., ready: bool = ..., served: bool = ...) -> None: ...

class TextBatch(_message.Message):
    __slots__ = ("epoch", "accepted", "terminals", "handles", "start_indices", "counts", "token_ids", "piece_counts", "piece_kinds", "pieces", "logprob_counts", "logprobs", "prompt_logprobs")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    TERMINALS_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    START_INDICES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PIECE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    PIECE_KINDS_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_COUNTS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    accepted: _containers.RepeatedCompositeFieldContainer[TextAccepted]
    terminals: _containers.RepeatedCompositeFieldContainer[TextTerminal]
    handles: bytes
    start_indices: bytes
    counts: bytes
    token_ids: bytes
    piece_counts: bytes
    piece_kinds: bytes
    pieces: _containers.RepeatedScalarFieldContainer[str]
    logprob_counts: bytes
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[TextPromptLogprobs]
    def __init__(self, epoch: _Optional[int] = ..., accepted: _Optional[_Iterable[_Union[TextAccepted, _Mapping]]] = ..., terminals: _Optional[_Iterable[_Union[TextTerminal, _Mapping]]] = ..., handles: _Optional[bytes] = ..., start_indices: _Optional[bytes] = ..., counts: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ..., piece_counts: _Optional[bytes] = ..., piece_kinds: _Optional[bytes] = ..., pieces: _Optional[_Iterable[str]] = ..., logprob_counts: _Optional[bytes] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[TextPromptLogprobs, _Mapping]]] = ...) -> None: ...

class TextPromptLogprobs(_message.Message):
    __slots__ = ("logprobs", "token_ids", "tokens", "text_offsets")
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEXT_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    logprobs: _common_pb2.PromptLogprobs
    token_ids: bytes
    tokens: _containers.RepeatedScalarFieldContainer[bytes]
    text_offsets: bytes
    def __init__(self, logprobs: _Optional[_Union[_common_pb2.PromptLogprobs, _Mapping]] = ..., token_ids: _Optional[bytes] = ..., tokens: _Optional[_Iterable[bytes]] = ..., text_offsets: _Optional[bytes] = ...) -> None: ...

class TextAccepted(_message.Message):
    __slots__ = ("handle", "seed", "prompt_token_ids", "cached_tokens", "resolved", "sampling", "first_prompt_token", "numerics_id")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RESOLVED_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    FIRST_PROMPT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_ID_FIELD_NUMBER: _ClassVar[int]
    handle: int
    seed: int
    prompt_token_ids: bytes
    cached_tokens: int
    resolved: ResolvedOutput
    sampling: _common_pb2.SamplingParams
    first_prompt_token: bytes
    numerics_id: str
    def __init__(self, handle: _Optional[int] = ..., seed: _Optional[int] = ..., prompt_token_ids: _Optional[bytes] = ..., cached_tokens: _Optional[int] = ..., resolved: _Optional[_Union[ResolvedOutput, _Mapping]] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., first_prompt_token: _Optional[bytes] = ..., numerics_id: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("token", "token_bytes", "logprob", "token_id")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    token: str
    token_bytes: bytes
    logprob: float
    token_id: int
    def __init__(self, token: _Optional[str] = ..., token_bytes: _Optional[bytes] = ..., logprob: _Optional[float] = ..., token_id: _Optional[int] = ...) -> None: ...

class TextTerminal(_message.Message):
    __slots__ = ("handle", "reason", "stop_string", "stop_token_id", "prompt_tokens", "output_tokens", "cached_tokens", "error", "numerics_id", "weights_version", "pieces", "piece_kinds", "reasoning_tokens")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_STRING_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_ID_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_VERSION_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    PIECE_KINDS_FIELD_NUMBER: _ClassVar[int]
    REASONING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    reason: _common_pb2.FinishReason
    stop_string: str
    stop_token_id: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    error: _common_pb2.Error
    numerics_id: str
    weights_version: str
    pieces: _containers.RepeatedScalarFieldContainer[str]
    piece_kinds: bytes
    reasoning_tokens: int
    def __init__(self, handle: _Optional[int] = ..., reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., stop_string: _Optional[str] = ..., stop_token_id: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., numerics_id: _Optional[str] = ..., weights_version: _Optional[str] = ..., pieces: _Optional[_Iterable[str]] = ..., piece_kinds: _Optional[bytes] = ..., reasoning_tokens: _Optional[int] = ...) -> None: ...

class GenerateTextRequest(_message.Message):
    __slots__ = ("request_id", "chat", "text", "token_ids", "n", "stream", "seed", "sampling", "output", "truncation", "cache_salt", "priority", "return_sampling", "resume", "cache_group")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    RETURN_SAMPLING_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    CACHE_GROUP_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    chat: ChatInput
    text: TextInput
    token_ids: TokenIds
    n: int
    stream: bool
    seed: int
    sampling: _common_pb2.SamplingParams
    output: OutputSpec
    truncation: Truncation
    cache_salt: str
    priority: int
    return_sampling: bool
    resume: TextResume
    cache_group: str
    def __init__(self, request_id: _Optional[str] = ..., chat: _Optional[_Union[ChatInput, _Mapping]] = ..., text: _Optional[_Union[TextInput, _Mapping]] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., n: _Optional[int] = ..., stream: bool = ..., seed: _Optional[int] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., output: _Optional[_Union[OutputSpec, _Mapping]] = ..., truncation: _Optional[_Union[Truncation, _Mapping]] = ..., cache_salt: _Optional[str] = ..., priority: _Optional[int] = ..., return_sampling: bool = ..., resume: _Optional[_Union[TextResume, _Mapping]] = ..., cache_group: _Optional[str] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class TextResume(_message.Message):
    __slots__ = ("started", "choices")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    started: TextStarted
    choices: _containers.RepeatedCompositeFieldContainer[_common_pb2.ResumedChoice]
    def __init__(self, started: _Optional[_Union[TextStarted, _Mapping]] = ..., choices: _Optional[_Iterable[_Union[_common_pb2.ResumedChoice, _Mapping]]] = ...) -> None: ...

class GenerateTextResponse(_message.Message):
    __slots__ = ("started", "choices", "usage", "prompt_logprobs")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    started: TextStarted
    choices: _containers.RepeatedCompositeFieldContainer[TextDelta]
    usage: _common_pb2.Usage
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[TextPromptLogprobs]
    def __init__(self, started: _Optional[_Union[TextStarted, _Mapping]] = ..., choices: _Optional[_Iterable[_Union[TextDelta, _Mapping]]] = ..., usage: _Optional[_Union[_common_pb2.Usage, _Mapping]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[TextPromptLogprobs, _Mapping]]] = ...) -> None: ...

class TextStarted(_message.Message):
    __slots__ = ("seed", "prompt_token_ids", "cached_tokens", "resolved", "numerics_id", "sampling")
    SEED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RESOLVED_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_ID_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    seed: int
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    cached_tokens: int
    resolved: ResolvedOutput
    numerics_id: str
    sampling: _common_pb2.SamplingParams
    def __init__(self, seed: _Optional[int] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., cached_tokens: _Optional[int] = ..., resolved: _Optional[_Union[ResolvedOutput, _Mapping]] = ..., numerics_id: _Optional[str] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ...) -> None: ...

class TextDelta(_message.Message):
    __slots__ = ("index", "token_ids", "pieces", "logprobs", "finish_reason", "stop_string", "stop_token_id")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_STRING_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    index: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    pieces: _containers.RepeatedCompositeFieldContainer[Piece]
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    finish_reason: _common_pb2.FinishReason
    stop_string: str
    stop_token_id: int
    def __init__(self, index: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., pieces: _Optional[_Iterable[_Union[Piece, _Mapping]]] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., finish_reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., stop_string: _Optional[str] = ..., stop_token_id: _Optional[int] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("kind", "text")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    kind: PieceKind
    text: str
    def __init__(self, kind: _Optional[_Union[PieceKind, str]] = ..., text: _Optional[str] = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("chat", "text", "tools_json", "return_tokens")
    CHAT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOOLS_JSON_FIELD_NUMBER: _ClassVar[int]
    RETURN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    chat: ChatInput
    text: TextInput
    tools_json: bytes
    return_tokens: bool
    def __init__(self, chat: _Optional[_Union[ChatInput, _Mapping]] = ..., text: _Optional[_Union[TextInput, _Mapping]] = ..., tools_json: _Optional[bytes] = ..., return_tokens: bool = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("token_ids", "tokens")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[bytes]] = ...) -> None: ...

class DetokenizeRequest(_message.Message):
    __slots__ = ("token_ids", "skip_special_tokens")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SKIP_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    skip_special_tokens: bool
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., skip_special_tokens: bool = ...) -> None: ...

class DetokenizeResponse(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class RenderRequest(_message.Message):
    __slots__ = ("chat", "tools_json")
    CHAT_FIELD_NUMBER: _ClassVar[int]
    TOOLS_JSON_FIELD_NUMBER: _ClassVar[int]
    chat: ChatInput
    tools_json: bytes
    def __init__(self, chat: _Optional[_Union[ChatInput, _Mapping]] = ..., tools_json: _Optional[bytes] = ...) -> None: ...

class RenderResponse(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class AllEngineStats(_message.Message):
    __slots__ = ("engines",)
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    engines: _containers.RepeatedCompositeFieldContainer[_engine_pb2.EngineStats]
    def __init__(self, engines: _Optional[_Iterable[_Union[_engine_pb2.EngineStats, _Mapping]]] = ...) -> None: ...

class GetTokenizerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TokenizerPiece(_message.Message):
    __slots__ = ("data", "sha256")
    DATA_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    sha256: str
    def __init__(self, data: _Optional[bytes] = ..., sha256: _Optional[str] = ...) -> None: ...

class EncodeRequest(_message.Message):
    __slots__ = ("submit", "any_length", "return_token_strs")
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    ANY_LENGTH_FIELD_NUMBER: _ClassVar[int]
    RETURN_TOKEN_STRS_FIELD_NUMBER: _ClassVar[int]
    submit: TextSubmit
    any_length: bool
    return_token_strs: bool
    def __init__(self, submit: _Optional[_Union[TextSubmit, _Mapping]] = ..., any_length: bool = ..., return_token_strs: bool = ...) -> None: ...

class EncodedPiece(_message.Message):
    __slots__ = ("token_ids", "token_strs", "error")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_STRS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    token_strs: _containers.RepeatedScalarFieldContainer[str]
    error: _common_pb2.Error
    def __init__(self, token_ids: _Optional[bytes] = ..., token_strs: _Optional[_Iterable[str]] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...

class DecodeRequest(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    def __init__(self, token_ids: _Optional[bytes] = ...) -> None: ...

class DecodedPiece(_message.Message):
    __slots__ = ("text", "error")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    text: str
    error: _common_pb2.Error
    def __init__(self, text: _Optional[str] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...

class GetTokenizerConfigRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TokenizerConfig(_message.Message):
    __slots__ = ("config_json",)
    CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    config_json: bytes
    def __init__(self, config_json: _Optional[bytes] = ...) -> None: ...
