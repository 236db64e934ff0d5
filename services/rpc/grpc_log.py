"""Drops grpcio's log lines about lost connections and malformed calls, which callers can cause at any rate.

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
    """Installs the filter on grpcio's logger. Also stops grpcio from printing logged tracebacks to stderr."""
    logging.getLogger(CORE).addFilter(_is_kept)
    importlib.import_module(CORE).traceback = SimpleNamespace(print_exc=lambda: None)  # type: ignore[attr-defined]


def _is_kept(record: logging.LogRecord) -> bool:
    """Returns False for lines about a lost connection, which is an ordinary event. For calls with malformed bytes, logs
    one line a second instead of grpcio's traceback for each."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, DecodeError):
        _malformed.log("refused a call with malformed bytes")
        return False
    gone = type(error).__name__ == "ExecuteBatchError"  # a class of grpcio's core that it does not export
    return not gone and not record.getMessage().startswith("ExecuteBatchError raised in core")
