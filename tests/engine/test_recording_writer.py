"""A written recording of the scheduler can be replayed, and a scheduler that plans differently is detected."""

import re
from pathlib import Path

import msgspec
import pytest

from engine_core.flight_recorder import VERSION, Added, Recording
from engine_core.kv_cache_manager import KVCacheManager
from services.engine.recording_writer import RecordingWriter
from services.engine.replay import main
from services.errors import Fatal
from tests.engine_core.test_flight_recorder import recorded, some_work
from tests.engine_core.test_scheduler import add_all
from tests.fakes import ROOT_KEY, make_core_request
from tests.small_disk import fill, small_disk


@pytest.fixture
def writer(tmp_path: Path) -> RecordingWriter:
    return RecordingWriter(str(tmp_path / "records"))


def written(writer: RecordingWriter, tmp_path: Path) -> str:
    writer.write_on_request()
    (path,) = (tmp_path / "records").iterdir()
    return str(path)


def test_a_replay_makes_the_recorded_plans(
    writer: RecordingWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert writer.recorder is not None
    pipe = recorded(writer.recorder)
    some_work(pipe)
    assert main([written(writer, tmp_path)]) == 0
    assert (
        capsys.readouterr().out == f"{pipe.scheduler.counters.steps} plans replayed, all equal to the recorded ones\n"
    )


def test_a_recording_has_the_roots_but_no_key_group_or_salt(
    writer: RecordingWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A replay finds the same cached prefixes: it needs the roots alone."""
    assert writer.recorder is not None
    pipe = recorded(writer.recorder)
    separated = [{"cache_group": "tenant-of-the-key", "cache_salt": "salt-of-the-client"}, {}]
    for handle in range(4):
        add_all(pipe.scheduler, make_core_request(handle, [*range(1, 12)], 3, **separated[handle % 2]))  # type: ignore[arg-type]
        pipe.run()
    assert pipe.scheduler.counters.prefix_cache_hits == 2 * 8, "the second request of each finds two blocks"
    path = written(writer, tmp_path)
    content = Path(path).read_bytes()
    for secret in (b"tenant-of-the-key", b"salt-of-the-client", ROOT_KEY):
        assert secret not in content
    for request in separated:
        assert make_core_request(0, [1], **request).root_hash in content  # type: ignore[arg-type]
    assert main([path]) == 0
    recording = msgspec.msgpack.decode(content, type=Recording)
    for frame in recording.frames:
        if isinstance(frame, Added):
            frame.request.root_hash = bytes(32)
    Path(path).write_bytes(msgspec.msgpack.encode(recording))
    assert main([path]) == 1, "with one root for all, the second request would have found the first one's blocks"


def test_a_scheduler_that_plans_differently_is_detected(
    writer: RecordingWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert writer.recorder is not None
    some_work(recorded(writer.recorder))
    monkeypatch.setattr(KVCacheManager, "find_cached", lambda kv, request: [[]])  # a fault: no prefix is found
    assert main([written(writer, tmp_path)]) == 1
    assert re.match(r"step \d+: recorded StepPlan\(.*, replayed StepPlan\(", capsys.readouterr().out)


def test_an_error_of_the_scheduler_is_raised_again_in_the_replay(
    writer: RecordingWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert writer.recorder is not None
    pipe = recorded(writer.recorder)
    some_work(pipe)
    add_all(pipe.scheduler, make_core_request(9, [1, 2], 6))
    plan = pipe.scheduler.schedule()
    assert plan is not None
    result = pipe.worker.execute(plan)
    result.counts = b""
    with pytest.raises(ValueError, match="zip"):
        pipe.scheduler.update(result)
    assert main([written(writer, tmp_path)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("the scheduler raised an error in the replay:\nTraceback") and "ValueError: zip" in out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xc1", "malformed"),
        (
            msgspec.msgpack.encode(Recording(VERSION + 1, [])),
            f"the file has version {VERSION + 1}, this tandem replays version {VERSION}",
        ),
        (msgspec.msgpack.encode(Recording(VERSION, [])), "begins in the middle"),
    ],
)
def test_a_file_that_cannot_be_replayed_is_refused(
    content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_bytes(content)
    assert main([str(tmp_path / "file")]) == 2
    assert message in capsys.readouterr().err


def test_a_directory_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Fatal, match="--flight-recorder-dir: .*file/below cannot be written: Not a directory"):
        RecordingWriter(str(tmp_path / "file" / "below"))


def test_a_full_disk_is_told_and_the_engine_runs_on_until_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        filling = fill(disk)
        writer = RecordingWriter(str(disk / "records"))
        assert f"{disk}/records cannot be written: No space left on device; the engine runs without" in caplog.text
        assert writer.recorder is not None
        some_work(recorded(writer.recorder))
        writer.write_on_request()
        assert "cannot write the recording to" in caplog.text
        assert list((disk / "records").iterdir()) == [], "a part of a recording"
        filling.unlink()
        writer.write_on_request()
        (path,) = (disk / "records").iterdir()
        assert main([str(path)]) == 0


def test_a_read_only_disk_is_told_and_the_engine_runs_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with small_disk(tmp_path / "disk", "ro") as disk:
        writer = RecordingWriter(str(disk / "records"))
        writer.write_on_failure()
    first, second = caplog.messages
    assert "cannot be written: Read-only file system; the engine runs without recordings until it can" in first
    assert "cannot write the recording to" in second
