"""Large fields of a submit, which stay serialized from the child process that made them to the wire.

A message of protobuf is the concatenation of its fields. So a message with a bulk is written without parsing the bulk,
and with one copy of it: a message object would copy 30 MB six times, on the event loop.
https://protobuf.dev/programming-guides/encoding/#last-one-wins
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2

MIN_BULK_BYTES = 64 * 1024  # smaller fields stay in the message
INPUT_FIELDS = ("chat", "text")  # of TextSubmit: the callee resolves them to token ids, which a resume sends instead
OUTPUT_FIELD = "output"
_ENTRY_TAG = b"\x12"  # TextDown.entries: field 2, with a length
_SUBMIT_TAG = b"\x0a"  # TextEntry.submit and EncodeRequest.submit: field 1, with a length


class Bulk(msgspec.Struct, frozen=True):
    """Serialized TextSubmits: one with the input alone, one with the output specification alone; empty: none."""

    input: memoryview = memoryview(b"")
    output: memoryview = memoryview(b"")


NO_BULK = Bulk()


def without_input(bulk: Bulk) -> Bulk:
    """Returns the bulk of a resume: the callee has resolved the input. Frees what it was in."""
    return Bulk(output=memoryview(bytes(bulk.output))) if bulk.output else NO_BULK


def split(submit: text_pb2.TextSubmit) -> Bulk:
    """Moves the large fields of `submit` out of it, in place, and returns them."""
    moved = {}
    for part, names in (("input", INPUT_FIELDS), ("output", (OUTPUT_FIELD,))):
        for name in names:
            if submit.HasField(name) and (value := getattr(submit, name)).ByteSize() >= MIN_BULK_BYTES:
                fields: Any = {name: value}
                moved[part] = memoryview(text_pb2.TextSubmit(**fields).SerializeToString())
                submit.ClearField(name)
    return Bulk(**moved) if moved else NO_BULK


@dataclass(frozen=True)
class BulkSubmit:
    """A submit whose large fields are serialized: `message` lacks them."""

    message: text_pb2.TextSubmit
    bulk: Bulk


class BulkEntry:
    """A TextEntry with a submit, as the bytes that it has within a TextDown."""

    def __init__(self, submit: BulkSubmit) -> None:
        parts = (submit.message.SerializeToString(), submit.bulk.output, submit.bulk.input)
        in_entry = _SUBMIT_TAG + _varint(sum(map(len, parts)))
        size = len(in_entry) + sum(map(len, parts))
        self.wire = b"".join((_ENTRY_TAG, _varint(size), in_entry, *parts))

    def ByteSize(self) -> int:
        return len(self.wire)


class BulkDown:
    """A TextDown with such entries among others: what its serializer needs of a message."""

    def __init__(self, entries: Sequence[Any]) -> None:
        self._parts = [
            entry.wire if isinstance(entry, BulkEntry) else text_pb2.TextDown(entries=[entry]).SerializeToString()
            for entry in entries
        ]

    def SerializeToString(self) -> bytes:
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)


class BulkEncodeRequest:
    """An EncodeRequest with such a submit: what its serializer needs of a message. `others`: its other fields."""

    def __init__(self, submit: BulkSubmit, others: text_pb2.EncodeRequest) -> None:
        parts = (submit.message.SerializeToString(), submit.bulk.output, submit.bulk.input)
        size = _varint(sum(map(len, parts)))
        self._parts = (_SUBMIT_TAG, size, *parts, others.SerializeToString())

    def SerializeToString(self) -> bytes:
        return b"".join(self._parts)


def submit_entry(submit: text_pb2.TextSubmit | BulkSubmit) -> text_pb2.TextEntry | BulkEntry:
    return BulkEntry(submit) if isinstance(submit, BulkSubmit) else text_pb2.TextEntry(submit=submit)


def encode_request(
    submit: text_pb2.TextSubmit | BulkSubmit, *, any_length: bool, return_token_strs: bool
) -> text_pb2.EncodeRequest | BulkEncodeRequest:
    """Returns the request to encode the prompt of a submit."""
    request = text_pb2.EncodeRequest(any_length=any_length, return_token_strs=return_token_strs)
    if isinstance(submit, BulkSubmit):
        return BulkEncodeRequest(submit, request)
    request.submit.CopyFrom(submit)
    return request


def text_down(*, hello: pb.Hello | None = None, entries: Sequence[Any] = ()) -> text_pb2.TextDown | BulkDown:
    if any(isinstance(entry, BulkEntry) for entry in entries):
        return BulkDown(entries)
    return text_pb2.TextDown(hello=hello, entries=entries)


def _varint(number: int) -> bytes:
    """https://protobuf.dev/programming-guides/encoding/#varints"""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
