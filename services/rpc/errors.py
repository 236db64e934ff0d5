"""The one table of errors: exception, gRPC status, HTTP status, OpenAI error type.

Code that refuses a request raises TandemError. Between processes it is the protobuf message `Error`.
"""

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from services.rpc.generated import common_pb2 as pb


@dataclass(frozen=True)
class Status:
    """`grpc`: the name of the status that ends a program's call (services/rpc/status.py)."""

    http: int
    openai_type: str
    grpc: str


# A program's call ends with UNAVAILABLE only if the process stops or is gone: then a resume at another process helps.
STATUS: dict[str, Status] = {
    "INVALID_ARGUMENT": Status(400, "invalid_request_error", "INVALID_ARGUMENT"),
    "OUT_OF_RANGE": Status(413, "invalid_request_error", "INVALID_ARGUMENT"),  # a request body beyond its limits
    "UNAUTHENTICATED": Status(401, "authentication_error", "UNAUTHENTICATED"),
    "PERMISSION_DENIED": Status(403, "permission_error", "PERMISSION_DENIED"),
    "NOT_FOUND": Status(404, "invalid_request_error", "NOT_FOUND"),
    "RESOURCE_EXHAUSTED": Status(429, "rate_limit_error", "RESOURCE_EXHAUSTED"),
    "DEADLINE_EXCEEDED": Status(503, "server_error", "RESOURCE_EXHAUSTED"),  # of a call between two roles
    "INTERNAL": Status(500, "server_error", "INTERNAL"),
    "UNAVAILABLE": Status(503, "server_error", "RESOURCE_EXHAUSTED"),
}


# The exceptions that reading a malformed message raises. They end the stream; the process goes on.
MALFORMED = (ValueError, LookupError, OverflowError, DecodeError)
MAX_MESSAGE_CHARACTERS = 1000  # message and param may quote the client's input, which has no limit
MAX_PARAM_CHARACTERS = 100
CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"  # OpenAI's code for a prompt, or prompt and answer, too long
RETRY_AFTER_SECONDS = 2  # a process that died is likely to be back after this time


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


class TandemError(Exception):
    """Ends a request. `code` is a key of STATUS, any other becomes INTERNAL; `param` is the request's field at fault,
    or empty; `reason` is OpenAI's error code, or empty. Long texts are shortened. If `retryable`, the same request may
    succeed later or elsewhere, after `retry_after` whole seconds (0: unknown)."""

    def __init__(
        self,
        code: str,
        message: str,
        param: str = "",
        retryable: bool = False,
        retry_after: int = 0,
        reason: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code if code in STATUS else "INTERNAL"
        self.message = _shortened(message, MAX_MESSAGE_CHARACTERS)
        self.param = _shortened(param, MAX_PARAM_CHARACTERS)
        self.retryable = retryable
        self.retry_after = retry_after
        self.reason = _shortened(reason, MAX_PARAM_CHARACTERS)

    @property
    def status(self) -> Status:
        return STATUS[self.code]

    def to_proto(self) -> pb.Error:
        return pb.Error(
            code=self.code,
            message=self.message,
            param=self.param,
            retryable=self.retryable,
            retry_after=self.retry_after,
            reason=self.reason,
        )

    @classmethod
    def from_proto(cls, error: pb.Error) -> "TandemError":
        return cls(error.code, error.message, error.param, error.retryable, error.retry_after, error.reason)


def invalid(message: str, param: str = "", reason: str = "") -> TandemError:
    """Returns the error for a request with a wrong value (HTTP 400), which a retry does not help."""
    return TandemError("INVALID_ARGUMENT", message, param, reason=reason)


def too_long(num_tokens: int, max_model_len: int, *, at_least: bool = False, param: str = "prompt") -> TandemError:
    """Returns the error for a prompt that leaves no room for an answer (HTTP 400).

    `at_least`: `num_tokens` is a lower bound. `param`: the request's field with the prompt.
    """
    count = f"at least {num_tokens}" if at_least else str(num_tokens)
    return invalid(
        f"the prompt is too long: it has {count} tokens, but this model's maximum context length is {max_model_len}"
        " tokens, prompt and answer together",
        param,
        CONTEXT_LENGTH_EXCEEDED,
    )


def unavailable(message: str, retry_after: int = RETRY_AFTER_SECONDS) -> TandemError:
    """Returns the error for a request that needs a process which is not connected (HTTP 503)."""
    return TandemError("UNAVAILABLE", message, retryable=True, retry_after=retry_after)


def timed_out(message: str) -> TandemError:
    """Returns the error for a request that a process did not answer in time (HTTP 503)."""
    return TandemError("DEADLINE_EXCEEDED", message, retryable=True, retry_after=RETRY_AFTER_SECONDS)


def other_numerics(numerics_id: str) -> TandemError:
    """Returns the error for a request that no process can continue: those that are there would make other tokens."""
    return unavailable(
        f"the request began with numerics_id {numerics_id!r}, and no process with the same model and options is left to"
        " continue it; send it anew"
    )


def too_much(message: str, retry_after: int) -> TandemError:
    """Returns the error for a request beyond a limit on work in progress (HTTP 429). `message` names the limit."""
    return TandemError("RESOURCE_EXHAUSTED", message, retryable=True, retry_after=retry_after)
