"""Every message survives its encoding, old readers read new writers and the reverse; the generated code is current."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from engine_core import step_plan, worker_messages
from services.rpc.columns import pack_f32, pack_u32, unpack_f32, unpack_u32
from services.rpc.generated import common_pb2, engine_pb2, text_pb2

ROOT = Path(__file__).resolve().parents[2]
MODULES = (common_pb2, engine_pb2, text_pb2)
ALL_MESSAGES = [message for module in MODULES for message in module.DESCRIPTOR.message_types_by_name.values()]
SAMPLES: dict[int, Any] = {
    FieldDescriptor.CPPTYPE_STRING: "text",
    FieldDescriptor.CPPTYPE_BOOL: True,
    FieldDescriptor.CPPTYPE_FLOAT: 0.5,
    FieldDescriptor.CPPTYPE_ENUM: 1,
}


def filled(descriptor: Descriptor) -> Message:
    """Returns a message with every field set, recursively; of a oneof, the last one."""
    message: Any = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if field.message_type is not None:
            inner = filled(field.message_type)
            target = getattr(message, field.name)
            target.add().CopyFrom(inner) if field.is_repeated else target.CopyFrom(inner)
            continue
        value = b"\1\2\3\4" if field.type == FieldDescriptor.TYPE_BYTES else SAMPLES.get(field.cpp_type, 7)
        if field.is_repeated:
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)
    return message  # type: ignore[no-any-return]


@pytest.mark.parametrize("descriptor", ALL_MESSAGES, ids=lambda descriptor: descriptor.name)
def test_every_protobuf_message_survives_its_encoding(descriptor: Descriptor) -> None:
    message = filled(descriptor)
    again = type(message).FromString(message.SerializeToString())
    assert again == message
    assert {field.name for field, _ in again.ListFields()} == {field.name for field, _ in message.ListFields()}


@pytest.mark.parametrize("descriptor", ALL_MESSAGES, ids=lambda descriptor: descriptor.name)
def test_an_old_reader_keeps_unknown_fields(descriptor: Descriptor) -> None:
    """An older reader passes a newer writer's field 500 on, and reads all other fields as before."""
    message = filled(descriptor)
    newer = message.SerializeToString() + b"\xa2\x1f\x03new"  # field 500, length-delimited
    read = type(message).FromString(newer)
    assert b"\xa2\x1f\x03new" in read.SerializeToString()
    for field, value in message.ListFields():
        assert getattr(read, field.name) == value


@pytest.mark.parametrize("descriptor", ALL_MESSAGES, ids=lambda descriptor: descriptor.name)
def test_a_new_reader_accepts_an_old_writers_message(descriptor: Descriptor) -> None:
    """Fields that an older writer omits are absent, which is no error."""
    empty = GetMessageClass(descriptor).FromString(b"")
    assert empty.ListFields() == []


def test_a_malformed_frame_raises_bad_message() -> None:
    for frame in (b"", b"\xff\xff", msgspec.msgpack.encode({"type": "step"}), b"\x80\x04K\x01."):
        with pytest.raises(step_plan.BadMessage):
            worker_messages.decode_from_engine([frame])


@given(st.lists(st.integers(0, 2**32 - 1)), st.lists(st.floats(width=32, allow_nan=False)))
def test_columns_survive_their_packing(ints: list[int], floats: list[float]) -> None:
    assert unpack_u32(pack_u32(ints)) == ints
    assert unpack_f32(pack_f32(floats)) == floats
    assert pack_u32([1, 256]) == b"\1\0\0\0\0\1\0\0", "little-endian"


def test_a_column_of_odd_length_is_refused() -> None:
    with pytest.raises(ValueError, match="5 bytes"):
        unpack_u32(b"12345")


def test_the_generated_code_is_current(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "protos.generate", str(tmp_path)], check=True, timeout=60, cwd=ROOT)
    committed = ROOT / "services/rpc/generated"
    fresh = {file.name: file.read_text() for file in tmp_path.iterdir() if file.is_file()}
    assert fresh == {file.name: file.read_text() for file in committed.glob("*.py*") if file.is_file()}


def test_nothing_is_ever_pickled() -> None:
    words = (
        "import pickle",
        "from pickle",
        "torch.load(",
        "send_pyobj",
        "recv_pyobj",
        "import marshal",
        "import shelve",
    )
    for package in ("services", "engine_core", "kernels"):
        for file in (ROOT / package).rglob("*.py"):
            text = file.read_text()
            assert not [word for word in words if word in text], file
