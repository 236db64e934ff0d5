"""Logs of a real server: one line per event with role and request id, as text or JSON, without prompts."""

import json
import re
from datetime import datetime
from pathlib import Path

import pytest

from tests.checkpoints import make_qwen3
from tests.e2e.api import CHAT, TEXT
from tests.e2e.harness import Server, run_tandem

SECRET = "xylophone"
PLAIN_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (DEBUG|INFO|WARNING|ERROR) \[(\w+)\] .+")


def requests_of(server: Server) -> list[str]:
    """Sends a good chat, a bad and a good completion with a secret in the prompts. Returns the ids of the good ones."""
    more = {"max_tokens": 2, "ignore_eos": True}
    chat = server.post(CHAT, {"messages": [{"role": "user", "content": SECRET}], **more}).json()
    assert server.post(TEXT, {"prompt": [10**6], **more}).status_code == 400
    text = server.post(TEXT, {"prompt": SECRET, **more}).json()
    return [chat["id"], text["id"]]


def test_log_format() -> None:
    """json: every line is one object, from every process."""
    with Server("--log-format=json") as server:
        ids = requests_of(server)
    lines = [json.loads(line) for line in server.lines]
    assert {line["role"] for line in lines} - {"serve"} == {"shim", "tokenizer", "engine", "worker"}
    for line in lines:
        assert line["level"] in ("debug", "info", "warning", "error")
        assert datetime.fromisoformat(line["time"]).tzinfo is not None
    finished = [line for line in lines if line["message"] == "request finished"]
    assert [line["request_id"] for line in finished if line["finish_reason"] == "length"] == ids
    assert [line["output_tokens"] for line in finished] == [2, 0, 2]
    assert [line["finish_reason"] for line in finished][1] == "INVALID_ARGUMENT"
    assert SECRET not in server.log


def test_text_is_the_default_and_reports_the_phases_of_the_start() -> None:
    with Server() as server:
        (first, second) = requests_of(server)
    assert [line for line in server.lines if not PLAIN_LINE.fullmatch(line.rstrip())] == []
    ready = next(line for line in server.lines if "ready on" in line)
    assert "serving demo; KV cache of 262144 tokens, 128.0 requests of maximum length (2048 tokens)" in ready
    for phase in ("loading weights on cpu as bfloat16", "weights loaded", "tokenizer loaded", "memory: weights 0.0"):
        assert server.log.index(phase) < server.log.index("ready on")
    spent = (
        r"ready after (.*) s: imports (.*), weights (.*), grammars (.*), waiting for the engine (.*), KV cache (.*)\n"
    )
    found = re.search(spent, server.log)
    assert found is not None
    total, *phases = map(float, found.groups())
    assert sum(phases) == pytest.approx(total, abs=0.3) and phases[0] > 0.2 and total < server.start_seconds + 0.3
    assert f"request_id={first} finish_reason=length" in server.log
    assert f"request_id={second} finish_reason=length" in server.log
    assert SECRET not in server.log


def test_log_level(tmp_path: Path) -> None:
    model = make_qwen3(tmp_path / "model")
    (model / "model.safetensors").unlink()
    for level, shown in (("info", True), ("error", False)):
        ended = run_tandem("serve", str(model), "--port=0", f"--log-level={level}")
        assert ended.returncode == 1 and " ERROR [serve] " in ended.stderr
        assert (" INFO " in ended.stderr) == shown
    with Server("--log-level=debug") as server:
        requests_of(server)
    assert " DEBUG " in server.log
    assert SECRET not in server.log
