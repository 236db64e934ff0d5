"""What no change of the protos may break within v1: numbers, names and types of everything that programs use.

protos/tandem-v1.binpb is the checked-in contract, a google.protobuf.FileDescriptorSet. Additions are allowed.
"""

from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)

CONTRACT = Path(__file__).resolve().parent / "tandem-v1.binpb"
Parts = dict[str, tuple[object, ...]]


def checked_in() -> FileDescriptorSet:
    """Returns the contract; an empty one if there is none yet."""
    return FileDescriptorSet.FromString(CONTRACT.read_bytes() if CONTRACT.is_file() else b"")


def broken(old: FileDescriptorSet, new: FileDescriptorSet) -> list[str]:
    """Returns one line for each part of `old` that `new` lacks or has changed; empty if programs cannot notice."""
    was, now = parts(old), parts(new)
    lines = [f"{name}: removed" for name in was.keys() - now.keys()]
    lines += [f"{name}: {was[name]} became {now[name]}" for name in was.keys() & now.keys() if was[name] != now[name]]
    return sorted(lines)


def parts(files: FileDescriptorSet) -> Parts:
    """Returns {full name: everything that must not change} of all messages, fields, enum values and RPCs."""
    found: Parts = {}
    for file in files.file:
        for message in file.message_type:
            found |= _message(f"{file.package}.{message.name}", message)
        for enum in file.enum_type:
            found |= _enum(f"{file.package}.{enum.name}", enum)
        for service in file.service:
            found |= _service(f"{file.package}.{service.name}", service)
    return found


def _message(name: str, message: DescriptorProto) -> Parts:
    found: Parts = {name: ("message",)} | _reserved(name, message)
    for field in message.field:
        found[f"{name}.{field.name}"] = _field(field, message)
    for nested in message.nested_type:
        found |= _message(f"{name}.{nested.name}", nested)
    for enum in message.enum_type:
        found |= _enum(f"{name}.{enum.name}", enum)
    return found


def _field(field: FieldDescriptorProto, message: DescriptorProto) -> tuple[object, ...]:
    oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
    type_name = FieldDescriptorProto.Type.Name(field.type)
    label = FieldDescriptorProto.Label.Name(field.label)
    return ("field", field.number, type_name, field.type_name, label, oneof, field.json_name)


def _enum(name: str, enum: EnumDescriptorProto) -> Parts:
    values: Parts = {f"{name}.{value.name}": ("value", value.number) for value in enum.value}
    return {name: ("enum",)} | values | _reserved(name, enum)


def _reserved(name: str, owner: DescriptorProto | EnumDescriptorProto) -> Parts:
    """Returns the numbers and names that were taken once: nothing may use them again."""
    ranges: Parts = {f"{name}.reserved {one.start} to {one.end}": ("reserved",) for one in owner.reserved_range}
    return ranges | {f"{name}.reserved {one}": ("reserved",) for one in owner.reserved_name}


def _service(name: str, service: ServiceDescriptorProto) -> Parts:
    rpcs: Parts = {
        f"{name}.{rpc.name}": ("rpc", rpc.input_type, rpc.client_streaming, rpc.output_type, rpc.server_streaming)
        for rpc in service.method
    }
    return {name: ("service",)} | rpcs


def uncommented(files: FileDescriptorSet) -> Iterator[str]:
    """Yields `file:line` of every message, field, enum value, service and RPC without a comment. The set must have
    source information (protoc --include_source_info)."""
    for file in files.file:
        for location in file.source_code_info.location:
            if _is_documented(list(location.path)) and not location.leading_comments.strip():
                yield f"{file.name}:{location.span[0] + 1}"


def _is_documented(path: list[int]) -> bool:
    """Returns whether a path of the descriptor leads to a message, enum or service (4, 5, 6) or to a field, value or
    RPC (2) of one. https://protobuf.com/docs/descriptors#source-code-info"""
    return path[:1] in ([4], [5], [6]) and (len(path) == 2 or (len(path) == 4 and path[2] == 2))
