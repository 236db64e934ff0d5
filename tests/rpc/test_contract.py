"""The protos keep their contract with programs: nothing of v1 is removed or changed, and everything has a comment."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet

from protos.contract import broken, checked_in, parts, uncommented
from protos.generate import descriptors

ROOT = Path(__file__).resolve().parents[2]


def test_the_protos_break_nothing_and_the_contract_is_up_to_date() -> None:
    assert broken(checked_in(), descriptors()) == []
    assert parts(checked_in()) == parts(descriptors()), "run `make protos`"


def test_every_part_has_a_comment() -> None:
    assert list(uncommented(descriptors(source_info=True))) == []


def edited(old: str, new: str, folder: Path) -> FileDescriptorSet:
    """Returns the descriptors after an edit of the one proto file that has `old`."""
    for file in sorted((ROOT / "protos/tandem/v1").glob("*.proto")):
        text = file.read_text(encoding="utf-8")
        copy = folder / "tandem/v1" / file.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text.replace(old, new, 1), encoding="utf-8")
    return descriptors(folder)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("  uint32 n = 5;\n", "", "GenerateTextRequest.n: removed"),
        ("  uint32 n = 5;", "  reserved 5;", "GenerateTextRequest.n: removed"),
        ("  uint32 n = 5;", "  uint64 n = 5;", "GenerateTextRequest.n: ('field', 5, 'TYPE_UINT32'"),
        ("  uint32 n = 5;", "  repeated uint32 n = 5;", "GenerateTextRequest.n: ('field', 5, 'TYPE_UINT32'"),
        ("  uint32 n = 5;", "  optional uint32 n = 5;", "GenerateTextRequest.n: ('field', 5, 'TYPE_UINT32'"),
        ("  uint32 n = 5;", "  uint32 n = 500;", "GenerateTextRequest.n: ('field', 5, 'TYPE_UINT32'"),
        ("  uint32 n = 5;", "  uint32 num = 5;", "GenerateTextRequest.n: removed"),
        ("    TextInput text = 3;", "    ChatInput text = 3;", "GenerateTextRequest.text: ('field', 3, 'TYPE_MESSAGE'"),
        ("  reserved 2;\n", "", "Hello.reserved 2 to 3: removed"),
        ('  reserved "capabilities";\n', "", "Hello.reserved capabilities: removed"),
        ("  uint32 n = 5;", '  uint32 n = 5 [json_name = "N"];', "GenerateTextRequest.n: ('field', 5, 'TYPE_UINT32'"),
        ("FINISH_REASON_LENGTH = 2", "FINISH_REASON_LENGTH = 7", "FINISH_REASON_LENGTH: ('value', 2)"),
        ("  rpc Render(RenderRequest) returns (RenderResponse);\n", "", "TextService.Render: removed"),
        ("returns (stream GenerateTextResponse)", "returns (GenerateTextResponse)", "TextService.Generate: ('rpc'"),
        ("package tandem.v1;", "package tandem.v2;", "tandem.v1.Abort: removed"),
    ],
)
def test_a_broken_contract_is_seen(old: str, new: str, line: str, tmp_path: Path) -> None:
    if old.startswith("package"):
        changed = descriptors()
        for file in changed.file:
            file.package = "tandem.v2"
    else:
        changed = edited(old, new, tmp_path)
    assert any(line in one for one in broken(checked_in(), changed))


@pytest.mark.parametrize(
    "add",
    [
        lambda files: (
            files.file[0].message_type[0].field.add(name="newer", number=500, type=FieldDescriptorProto.TYPE_STRING)
        ),
        lambda files: files.file[0].message_type.add(name="Newer"),
        lambda files: files.file[0].enum_type[0].value.add(name="NEWER", number=99),
    ],
    ids=["field", "message", "enum value"],
)
def test_an_addition_breaks_nothing(add: Callable[[FileDescriptorSet], object]) -> None:
    changed = descriptors()
    add(changed)
    assert broken(checked_in(), changed) == []
    assert parts(checked_in()) != parts(changed)


def test_a_missing_comment_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "tandem/v1/one.proto"
    file.parent.mkdir(parents=True)
    file.write_text('syntax = "proto3";\n/// Said.\nmessage One {\n  uint32 unsaid = 1;\n}\n', encoding="utf-8")
    assert list(uncommented(descriptors(tmp_path, source_info=True))) == ["tandem/v1/one.proto:4"]


def test_make_protos_refuses_to_break_the_contract(tmp_path: Path) -> None:
    """The script that writes the contract does not write one that lacks a part of the old one."""
    for source in ("protos/contract.py", "protos/generate.py", "protos/tandem-v1.binpb"):
        copy = tmp_path / source
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes((ROOT / source).read_bytes())
    edited("  uint32 n = 5;\n", "", tmp_path / "protos")
    run = subprocess.run(
        [sys.executable, "-m", "protos.generate"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 1
    assert "GenerateTextRequest.n: removed" in run.stderr
    assert (tmp_path / "protos/tandem-v1.binpb").read_bytes() == (ROOT / "protos/tandem-v1.binpb").read_bytes()
