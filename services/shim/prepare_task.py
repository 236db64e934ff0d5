"""Prepares bodies in child processes (services/process/task_pool.py): calls and results are bytes.

Children import this module: it loads schemas and protobuf, but neither gRPC nor an HTTP server.
"""

import gc
import struct
import traceback
from collections.abc import Callable

import msgspec

from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.shim.apis.translation import AnyTranslation
from services.shim.apis.translations import TRANSLATIONS
from services.shim.bulk import NO_BULK, Bulk, split
from services.shim.prepare import Prepared, PrepareOptions, RequestFacts, prepare

TARGET = f"{__name__}:task"
_LENGTH = struct.Struct("<I")


class _Call(msgspec.Struct):
    """`facts`: a serialized EngineFacts; None: not known yet."""

    translation: str
    facts: bytes | None
    cache_group: str


class Packed(msgspec.Struct, tag=True):
    """Prepared, with the submits serialized; a large one has a bulk."""

    facts: RequestFacts
    submits: list[memoryview]  # parts of the result: a copy of all of them in one step would take long
    bulk: dict[int, Bulk]


class Refused(msgspec.Struct, tag=True):
    """`error`: a serialized Error."""

    error: bytes


class Crashed(msgspec.Struct, tag=True):
    """`traceback`: of the bug, without the exception's message, which may quote the request."""

    traceback: str


Result = Packed | Refused | Crashed
_encode = msgspec.msgpack.Encoder().encode
_decode_call = msgspec.msgpack.Decoder(_Call).decode
unpack: Callable[[bytes | bytearray], Result] = msgspec.msgpack.Decoder(Result).decode


def add_call(body: bytearray, translation: AnyTranslation, facts: pb.EngineFacts | None, cache_group: str) -> None:
    """Appends to a body what else its call needs, in place: a call in front of it would copy the body."""
    call = _encode(_Call(translation.name, None if facts is None else facts.SerializeToString(), cache_group))
    body += call
    body += _LENGTH.pack(len(call))


def setup_of(options: PrepareOptions) -> bytes:
    return _encode(options)


def task(setup: bytes) -> Callable[[bytes], bytes]:
    """Returns the function from a call (add_call) to its result (unpack). `setup`: of setup_of."""
    options = msgspec.msgpack.decode(setup, type=PrepareOptions)

    def run(payload: bytes) -> bytes:
        gc.disable()  # what is parsed has no cycles, and collections make half of the time of a body of `[1],`
        try:
            return _encode(_packed(_prepared(memoryview(payload), options)))
        except TandemError as error:
            return _encode(Refused(error.to_proto().SerializeToString()))
        except MemoryError:
            raise  # the pool ends this process
        except Exception as error:
            frames = "".join(traceback.format_tb(error.__traceback__))
            return _encode(Crashed(f"{frames}{type(error).__name__}"))
        finally:
            gc.enable()

    return run


def _prepared(payload: memoryview, options: PrepareOptions) -> Prepared:
    end = len(payload) - _LENGTH.size
    start = end - _LENGTH.unpack(payload[end:])[0]
    call = _decode_call(payload[start:end])
    facts = None if call.facts is None else pb.EngineFacts.FromString(call.facts)
    return prepare(TRANSLATIONS[call.translation], payload[:start], facts, options, call.cache_group)


def _packed(prepared: Prepared) -> Packed:
    bulk = {index: split(submit) for index, submit in enumerate(prepared.submits)}
    return Packed(
        prepared.facts,
        [memoryview(submit.SerializeToString()) for submit in prepared.submits],
        {index: one for index, one in bulk.items() if one is not NO_BULK},
    )
