"""Published vulnerabilities of other servers, tried on this one (docs/security.md lists the CVEs)."""

import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from services.machine.listen import listen
from services.options.declarations import WorkerOptions
from services.shim.generation import Generation
from services.worker.errors import ModelError
from services.worker.loading import load_model
from tests.checkpoints import make_qwen3
from tests.rpc.pipeline import Pipeline

ROOT = Path(__file__).resolve().parents[2]
SERVED = [file for name in ("services", "engine_core", "kernels") for file in (ROOT / name).rglob("*.py")]
BODY = {"model": "fake", "prompt": "Hello!", "max_tokens": 2, "temperature": 0}


@contextlib.asynccontextmanager
async def api(folder: Path, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with Pipeline(folder).running() as pipeline, pipeline.http(**options) as http:
        yield http


def test_no_unpickler_of_any_name() -> None:
    """CVE-2024-9053 and similar: unpicklers with names that do not contain "pickle"."""
    unpicklers = re.compile(r"\b(cloudpickle|dill|joblib|shelve|marshal|allow_pickle|recv_pyobj|torch\.load)\b")
    assert len(SERVED) > 100
    assert [file for file in SERVED if unpicklers.search(file.read_text(encoding="utf-8"))] == []


def test_secrets_are_compared_in_constant_time() -> None:
    """CVE-2025-59425: the comparison took longer the more characters of the key were right."""
    comparing = [
        ROOT / name
        for name in (
            "services/process/metrics_server.py",
            "services/security/curve.py",
        )
    ]
    for file in comparing:
        assert "hmac.compare_digest(" in file.read_text(encoding="utf-8"), file
    # It looks keys up by an HMAC of their digest, of which a client knows no bit.
    assert "hmac.digest(self._blind, " in (ROOT / "services/shim/access/keys.py").read_text(encoding="utf-8")
    plain = re.compile(r"(api_key|token|authorization|_worker_key) (==|!=) ")
    assert [file for file in SERVED if plain.search(file.read_text(encoding="utf-8"))] == []


async def test_a_request_id_of_the_client_is_only_a_label(socket_dir: Path) -> None:
    """CVE-2026-116176: a worker connected to an address in the request id."""
    with listen("127.0.0.1", 0) as listener:
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        async with api(socket_dir) as http:
            answer = await http.post("/v1/completions", json=BODY, headers={"X-Request-Id": address})
        assert answer.status_code == 200 and answer.json()["id"] == f"cmpl-{address}"
        with pytest.raises(BlockingIOError):  # nothing has connected
            listener.accept()


@pytest.mark.parametrize("host", ["x/?a=", "x/health", "x/health#", "/metrics?", "[::1", "a b"])
async def test_a_host_header_opens_no_route(socket_dir: Path, host: str) -> None:
    """CVE-2026-48746: the key was checked for another path than the one that was routed."""
    async with api(socket_dir, api_key=("right",)) as http:
        answer = await http.post("/v1/completions", json=BODY, headers={"Host": host})
    assert answer.status_code == 401


@pytest.mark.parametrize("name", ["chat_template", "messages", "tools", "add_generation_prompt"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/chat/completions/render", "/tokenize"])
async def test_template_arguments_bring_no_template(socket_dir: Path, path: str, name: str) -> None:
    """CVE-2026-115918: a template argument replaced the template."""
    body = {"model": "fake", "messages": [{"role": "user", "content": "Hello!"}], "chat_template_kwargs": {name: "x"}}
    async with api(socket_dir) as http:
        answer = await http.post(path, json=body)
    assert answer.status_code == 400 and name in answer.json()["error"]["message"]


async def test_template_arguments_are_variables(socket_dir: Path) -> None:
    """CVE-2025-62426: they became arguments of a function, which then encoded the prompt in the API server."""
    body = {"model": "fake", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 3, "temperature": 0}
    async with api(socket_dir) as http:
        plain = await http.post("/v1/chat/completions", json=body)
        named = await http.post("/v1/chat/completions", json={**body, "chat_template_kwargs": {"tokenize": True}})
    assert named.json()["usage"]["prompt_tokens"] == plain.json()["usage"]["prompt_tokens"]
    assert named.json()["choices"] == plain.json()["choices"]


async def test_a_bug_gives_nothing_away(socket_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CVE-2025-23320: an error message contained the name of a shared memory region."""

    def broken(*args: object) -> None:
        raise RuntimeError("the secret is 0123456789abcdef")

    monkeypatch.setattr(Generation, "__init__", broken)
    async with Pipeline(socket_dir).running() as pipeline, pipeline.http(raise_app_exceptions=False) as http:
        answer = await http.post("/v1/completions", json=BODY)
    assert answer.status_code == 500 and "secret" not in answer.text and "Traceback" not in answer.text


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> object:
        return (Path.touch, (self.file,))


def test_pickled_weights_are_not_opened(tmp_path: Path) -> None:
    """CVE-2025-24357: torch.load ran code in the file."""
    folder, mark = make_qwen3(tmp_path / "model"), tmp_path / "ran"
    torch.save({"weights": Payload(mark)}, folder / "pytorch_model.bin")
    for file in folder.glob("*.safetensors"):
        file.unlink()
    with pytest.raises(ModelError, match="no weights to load"):
        load_model(folder, WorkerOptions(model=str(folder), device="cpu"))
    assert not mark.exists()


def test_code_beside_a_checkpoint_never_runs(tmp_path: Path) -> None:
    """CVE-2025-66448: auto_map ran code in the checkpoint's directory."""
    folder, mark = make_qwen3(tmp_path / "model"), tmp_path / "ran"
    for name in ("modeling_evil", "configuration_evil", "conftest"):
        (folder / f"{name}.py").write_text(f"import pathlib; pathlib.Path({str(mark)!r}).touch()\n")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "configuration_evil.C", "AutoModelForCausalLM": "modeling_evil.M"}
    (folder / "config.json").write_text(json.dumps(config))
    load_model(folder, WorkerOptions(model=str(folder), device="cpu"))
    assert not mark.exists()


@pytest.mark.parametrize("name", ["../model.safetensors", "{}/model.safetensors", "a/../../model.safetensors"])
def test_an_index_leads_out_of_no_directory(tmp_path: Path, name: str) -> None:
    """Similar to CVE-2024-37032: names in a manifest led to any directory."""
    folder = make_qwen3(tmp_path / "model")
    (folder / "model.safetensors").rename(tmp_path / "model.safetensors")
    index = {"weight_map": {"lm_head.weight": name.format(tmp_path)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"model\.safetensors\.index\.json names a file outside its directory"):
        load_model(folder, WorkerOptions(model=str(folder), device="cpu"))
