"""Weight files that are cut, and those that changed since the server's first load, are refused in one line."""

import os
import re
from pathlib import Path

import pytest

from services.process.worker_record import RecordFile
from services.worker.errors import ModelError
from services.worker.weight_files import NUM_SAMPLES, SAMPLE_BYTES, WeightFiles, fingerprint
from tests.checkpoints import make_qwen3
from tests.worker.checkpoint_files import change_weights, load


@pytest.fixture
def file(path: Path) -> Path:
    return path / "model.safetensors"


def version(record: RecordFile, *files: Path, every_byte: bool = False) -> str:
    return WeightFiles(record, every_byte).version(list(files))


def flip(file: Path, offset: int) -> None:
    """Changes one byte; the time of the last change stays as it was."""
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    with file.open("r+b") as raw:
        raw.seek(offset)
        byte = raw.read(1)
        raw.seek(offset)
        raw.write(bytes([byte[0] ^ 1]))
    os.utime(file, ns=times)


def header_end(file: Path) -> int:
    return 8 + int.from_bytes(file.read_bytes()[:8], "little")


@pytest.mark.parametrize("cut", [1, 4096])
def test_a_file_that_is_cut_is_told_with_both_sizes(path: Path, file: Path, cut: int) -> None:
    size = file.stat().st_size
    os.truncate(file, size - cut)
    expected = f"the weight file {file} is not whole: it has {size - cut} bytes, but its header says {size}: fetch it"
    with pytest.raises(ModelError, match=re.escape(expected)):
        load(path)


def test_a_file_with_more_than_its_header_says_is_not_whole(path: Path, file: Path) -> None:
    size = file.stat().st_size
    os.truncate(file, size + 10)
    with pytest.raises(ModelError, match=f"it has {size + 10} bytes, but its header says {size}:"):
        load(path)


def test_a_header_that_is_cut_is_told(path: Path, file: Path) -> None:
    end = header_end(file)
    os.truncate(file, end - 5)
    with pytest.raises(ModelError, match=f"it has {end - 5} bytes, but its header says at least {end}:"):
        load(path)


@pytest.mark.parametrize("size", [0, 3])
def test_a_file_without_a_header_is_told(path: Path, file: Path, size: int) -> None:
    os.truncate(file, size)
    with pytest.raises(ModelError, match=rf"is not whole: it has {size} bytes, but its header says at least \d+:"):
        load(path)


def test_a_file_of_another_kind_is_no_cut_one(path: Path, file: Path) -> None:
    file.write_bytes(b"PK\x03\x04 a zip file, as torch's pickles are")
    with pytest.raises(ModelError, match=f"^cannot read the weights in {re.escape(str(file))}: "):
        load(path)


def test_the_version_follows_every_tensor(file: Path, path: Path) -> None:
    before = version(RecordFile(None), file)
    assert before == version(RecordFile(None), file)
    change_weights(path, lambda tensors: tensors["model.norm.weight"].add_(1))
    assert version(RecordFile(None), file) != before


def test_the_same_files_are_served_again(tmp_path: Path) -> None:
    files = sorted(make_qwen3(tmp_path / "model", shard_size="200KB").glob("*.safetensors"))
    record = RecordFile(None)
    assert version(record, *files) == version(record, *files)
    assert list(record.read().weights) == [file.name for file in files]


def test_another_size_is_refused(file: Path) -> None:
    record = RecordFile(None)
    version(record, file)
    size = file.stat().st_size
    raw = file.read_bytes()
    header = raw[8 : header_end(file)] + b" " * 8  # as long a header as another framework writes
    file.write_bytes(len(header).to_bytes(8, "little") + header + raw[header_end(file) :])
    expected = f"the weight file {file} has changed since this server first loaded it: it had {size} bytes and has"
    with pytest.raises(ModelError, match=re.escape(f"{expected} {size + 8}; put the former file back, or restart")):
        version(record, file)


def test_another_tensor_of_the_same_size_is_refused(file: Path, path: Path) -> None:
    record = RecordFile(None)
    change_weights(path, lambda tensors: None)  # written by the same library as below
    version(record, file)
    change_weights(path, lambda tensors: tensors["model.norm.weight"].add_(1))
    with pytest.raises(ModelError, match=r"it has the same size, but another digest of sampled bytes \(\w+, now \w+\)"):
        version(record, file)


def test_only_verification_sees_a_byte_between_the_samples(tmp_path: Path) -> None:
    file = next(make_qwen3(tmp_path / "model", hidden_size=512, intermediate_size=2048).glob("*.safetensors"))
    size = file.stat().st_size
    assert size > 10 * NUM_SAMPLES * SAMPLE_BYTES
    first, whole = RecordFile(None), RecordFile(None)
    version(first, file)
    version(whole, file, every_byte=True)
    unseen = next(offset for offset in range(size // 2, size, 997) if _is_unseen(file, offset))
    flip(file, unseen)
    version(first, file)
    with pytest.raises(ModelError, match="it has the same size, but another digest of all bytes"):
        version(whole, file, every_byte=True)


def _is_unseen(file: Path, offset: int) -> bool:
    before = fingerprint(file, every_byte=False)
    flip(file, offset)
    after = fingerprint(file, every_byte=False)
    flip(file, offset)
    return before == after


def test_another_time_alone_is_told_and_served(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    record = RecordFile(None)
    before = version(record, file)
    os.utime(file, ns=(0, 0))
    assert version(record, file) == before
    (line,) = caplog.messages
    assert line.startswith(f"the weight file {file} has another time of its last change") and "--verify" in line


def test_after_verification_another_time_needs_no_word(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    record = RecordFile(None)
    before = version(record, file, every_byte=True)
    assert before != version(RecordFile(None), file), "a worker that verifies and one that does not differ"
    os.utime(file, ns=(0, 0))
    assert version(record, file, every_byte=True) == before
    assert caplog.messages == []


def test_a_file_that_is_gone_or_new_is_refused(tmp_path: Path) -> None:
    first, second, *_ = sorted(make_qwen3(tmp_path / "model", shard_size="200KB").glob("*.safetensors"))
    record = RecordFile(None)
    version(record, first)
    with pytest.raises(ModelError, match=f"{second.name} has changed .*: it was not there;"):
        version(record, first, second)
    with pytest.raises(ModelError, match=f"the weight file {first.name} is gone"):
        version(record, second)


def test_a_file_that_is_written_to_while_it_is_loaded_is_refused(file: Path) -> None:
    files = WeightFiles(RecordFile(None), every_byte=False)
    files.version([file])
    files.check_unchanged()
    os.utime(file, ns=(0, 0))
    with pytest.raises(ModelError, match="was written to while it was loaded: start again"):
        files.check_unchanged()
