"""The archive of tokenizer files, and the facts in the model's files."""

import hashlib
import io
import zipfile
from pathlib import Path

import pytest

import demo
from services.tokenizer import model_archive
from services.tokenizer.model_archive import ModelArchive
from services.tokenizer.model_facts import model_facts
from services.tokenizer.vocabulary import Vocabulary


def content_of(archive: ModelArchive) -> bytes:
    pieces = archive.pieces()
    content = b"".join(piece.data for piece in pieces)
    assert [bool(piece.sha256) for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert pieces[-1].sha256 == hashlib.sha256(content).hexdigest()
    return content


def test_the_archive_has_the_tokenizers_files_and_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_archive, "PIECE_BYTES", 1000)
    with zipfile.ZipFile(io.BytesIO(content_of(ModelArchive(demo.CHECKPOINT, "{{ messages }}")))) as archive:
        assert set(archive.namelist()) == {
            "chat_template.jinja", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
        }  # fmt: skip
        assert archive.read("tokenizer.json") == (demo.CHECKPOINT / "tokenizer.json").read_bytes()
        assert archive.read("chat_template.jinja") == b"{{ messages }}", "the one that this server renders"


def test_equal_files_give_equal_archives() -> None:
    assert content_of(ModelArchive(demo.CHECKPOINT, None)) == content_of(ModelArchive(demo.CHECKPOINT, None))


def test_the_facts_are_those_of_the_files(tmp_path: Path) -> None:
    facts = model_facts(demo.CHECKPOINT, Vocabulary(demo.CHECKPOINT))
    assert (facts.model_type, list(facts.architectures), facts.pad_token_id) == ("qwen3", ["Qwen3ForCausalLM"], 0)
    assert not facts.HasField("bos_token_id") and not facts.HasField("facts")
    for content in ("{}", "broken"):
        (tmp_path / "config.json").write_text(content)
        assert model_facts(tmp_path, Vocabulary(demo.CHECKPOINT)).ByteSize() == 0
