"""What grpcio logs: made fit for a log that any caller can write to.

https://github.com/grpc/grpc/blob/v1.76.0/src/python/grpcio/grpc/_cython/_cygrpc/aio/server.pyx.pxi
"""

import importlib
import logging
from types import SimpleNamespace

from google.protobuf.message import DecodeError

from services.telemetry.logs import RateLimitedLog

_malformed = RateLimitedLog(logging.getLogger(__name__), logging.WARNING)
CORE = "grpc._cython.cygrpc"


def configure_grpc_log() -> None:
    """Filters grpcio's log. Stops it from printing, to stderr and past the log, the tracebacks that it logs."""
    logging.getLogger(CORE).addFilter(_is_news)
    importlib.import_module(CORE).traceback = SimpleNamespace(print_exc=lambda: None)  # type: ignore[attr-defined]


def _is_news(record: logging.LogRecord) -> bool:
    """Drops what grpcio logs when a connection is gone, which is an ordinary event. For malformed bytes it logs a
    traceback each time; here one line a second tells of them."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, DecodeError):
        _malformed.log("refused a call with malformed bytes")
        return False
    gone = type(error).__name__ == "ExecuteBatchError"  # a class of grpcio's core that it does not export
    return not gone and not record.getMessage().startswith("ExecuteBatchError raised in core")
