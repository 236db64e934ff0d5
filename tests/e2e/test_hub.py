"""`tandem serve OWNER/NAME`: models from the Hugging Face hub, here from a fake hub on loopback."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3MoeForCausalLM

from tests.addresses import at, open_server
from tests.checkpoints import make_qwen3, make_qwen3_moe
from tests.e2e.harness import TANDEM, Server, run_tandem, wait_for
from tests.e2e.hub import Hub

REPOSITORY = "Qwen/Qwen3-tiny-test"
SOON_SECONDS = 10.0


def greedy_tokens(server: Server) -> list[int]:
    token_ids: list[int] = server.complete("Hello there", temperature=0, max_tokens=12, ignore_eos=True)["token_ids"]
    return token_ids


def refusal(*args: str, env: dict[str, str]) -> str:
    """Returns the one line on stderr of a `tandem serve` that cannot start; the lines of a download do not count."""
    started = time.monotonic()
    ended = run_tandem("serve", *args, "--port=0", env=env)
    assert time.monotonic() - started < SOON_SECONDS
    assert ended.returncode == 1, ended.stderr
    lines = [line for line in ended.stderr.splitlines() if line and not line.startswith(("Fetching", "\r"))]
    assert len(lines) == 1 and lines[0].startswith("tandem serve: error: "), ended.stderr
    return lines[0]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two revisions in shards: a dense model, and a mixture of experts with a tensor for each expert."""
    base = tmp_path_factory.mktemp("repository")
    return {
        "main": make_qwen3(base / "main", shard_size="100KB"),
        "refs/pr/1": make_qwen3_moe(base / "other", seed=1, shard_size="150KB"),
    }


@pytest.fixture(scope="module")
def hub(folders: dict[str, Path]) -> Iterator[Hub]:
    with Hub({REPOSITORY: folders}) as running:
        yield running


@pytest.fixture(scope="module")
def main_tokens(folders: dict[str, Path]) -> list[int]:
    """The answer of a server of the directory itself."""
    with Server(str(folders["main"])) as server:
        return greedy_tokens(server)


def test_a_repository_answers_like_its_directory(
    hub: Hub, folders: dict[str, Path], main_tokens: list[int], tmp_path: Path
) -> None:
    """Also a second time, from the cache, when the hub is unreachable."""
    shards = sorted(file.name for file in folders["main"].glob("*.safetensors"))
    assert len(shards) > 1
    with Server(REPOSITORY, env=hub.environment(tmp_path)) as server:
        assert greedy_tokens(server) == main_tokens
        models = server.get("/v1/models").json()["data"]
        assert [card["id"] for card in models] == [REPOSITORY]
        assert server.post("/v1/completions", {"prompt": "a", "model": REPOSITORY}).json()["model"] == REPOSITORY
        assert "HTTP Request" not in server.log
    assert sorted(hub.downloads(".safetensors")) == shards  # each once, though two roles read the model
    count = len(hub.requests)
    with Server(REPOSITORY, env=hub.environment(tmp_path) | {"HF_HUB_OFFLINE": "1"}) as server:
        assert greedy_tokens(server) == main_tokens
    assert len(hub.requests) == count


def test_revision_picks_the_other_weights(
    hub: Hub, folders: dict[str, Path], main_tokens: list[int], tmp_path: Path
) -> None:
    names = json.loads((folders["refs/pr/1"] / "model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(names.values())) > 1 and "model.layers.1.mlp.experts.7.down_proj.weight" in names
    extra = {"ignore_eos": True, "return_token_ids": True}
    with (
        Server(REPOSITORY, "--revision=refs/pr/1", env=hub.environment(tmp_path)) as server,
        server.openai() as client,
    ):
        answer = client.completions.create(
            model=REPOSITORY, prompt="Hello there", temperature=0, max_tokens=12, extra_body=extra
        )
    choice = answer.choices[0].model_dump()
    model: Any = Qwen3MoeForCausalLM.from_pretrained(folders["refs/pr/1"])
    prompt = torch.tensor([choice["prompt_token_ids"]])
    expected = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False)
    assert choice["token_ids"] == expected[0, prompt.shape[1] :].tolist()
    assert choice["token_ids"] != main_tokens


def test_dummy_weights_are_not_downloaded(folders: dict[str, Path], tmp_path: Path) -> None:
    with Hub({REPOSITORY: folders}) as hub:
        with Server(REPOSITORY, "--load-format=dummy", env=hub.environment(tmp_path)) as server:
            assert greedy_tokens(server)
        assert "config.json" in hub.downloads(".json")
        assert hub.downloads(".safetensors") == []


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["Qwen/Qwen3-nowhere"], "Qwen/Qwen3-nowhere is neither .* Repository Not Found"),
        ([REPOSITORY, "--revision=nope"], "Revision Not Found .*/revision/nope"),
        (["no such name"], "there is no model directory no such name"),
    ],
)
def test_a_missing_repository_is_reported_in_one_line(hub: Hub, tmp_path: Path, args: list[str], reason: str) -> None:
    assert re.search(reason, refusal(*args, env=hub.environment(tmp_path)))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE"), ({"HF_ENDPOINT": f"http://{at(9)}"}, "Connection refused")],
)
def test_an_unreachable_hub_is_reported_in_one_line(
    hub: Hub, tmp_path: Path, changes: dict[str, str], reason: str
) -> None:
    assert reason in refusal(REPOSITORY, env=hub.environment(tmp_path) | changes)


def test_a_hub_that_disconnects_is_reported_in_one_line(hub: Hub, tmp_path: Path) -> None:
    with open_server() as broken:
        threading.Thread(target=_hang_up, args=(broken,), daemon=True).start()
        env = hub.environment(tmp_path) | {"HF_ENDPOINT": f"http://{at(broken.getsockname()[1])}"}
        assert "disconnected" in refusal(REPOSITORY, env=env)
        broken.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"intermediate_size": 10**9}, "GB of memory are free"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, but at most 10000 are supported"),
        ({"architectures": ["MambaForCausalLM"]}, r"architectures \['MambaForCausalLM'\] are not supported"),
    ],
)
def test_what_cannot_be_served_is_not_downloaded(
    folders: dict[str, Path], tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    folder = shutil.copytree(folders["main"], tmp_path / "changed")
    config = json.loads((folder / "config.json").read_text())
    config.pop("layer_types")
    (folder / "config.json").write_text(json.dumps(config | change))
    with Hub({REPOSITORY: {"main": folder}}) as hub:
        assert re.search(reason, refusal(REPOSITORY, env=hub.environment(tmp_path)))
        assert hub.downloads(".safetensors") == []


def test_a_download_does_not_delay_the_exit(folders: dict[str, Path], tmp_path: Path) -> None:
    with Hub({REPOSITORY: folders}, stalled=".safetensors") as hub:
        argv = [*TANDEM, "serve", REPOSITORY, "--port=0"]
        process = subprocess.Popen(argv, env={**os.environ, **hub.environment(tmp_path)}, stderr=subprocess.DEVNULL)
        wait_for(lambda: hub.downloads(".safetensors"), "the download has begun")
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 0


def _hang_up(server: socket.socket) -> None:
    """Closes every connection after its request, until the server is shut down."""
    with contextlib.suppress(OSError):
        while True:
            caller, _ = server.accept()
            with caller:
                caller.recv(65536)


def test_a_revision_of_a_local_directory_is_refused(hub: Hub, folders: dict[str, Path], tmp_path: Path) -> None:
    message = refusal(str(folders["main"]), "--revision=main", env=hub.environment(tmp_path))
    assert "--revision is for repositories of the hub" in message
