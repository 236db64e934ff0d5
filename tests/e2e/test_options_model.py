"""Options of the model: its directory, its configuration, its templates, and the file of --config."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import make_qwen3
from tests.e2e.harness import Server
from tests.e2e.options import model_cards, tokens_of


def chat(server: Server, text: str, **kwargs: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "return_token_ids": True, **kwargs}
    response = server.post("/v1/chat/completions", body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_qwen3(tmp_path_factory.mktemp("small") / "model")


@pytest.fixture(scope="module")
def described(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a configuration that the command line changes."""
    folder = tmp_path_factory.mktemp("described")
    (folder / "generation_config.json").write_text('{"max_new_tokens": 5}')
    (folder / "template").write_text(
        "{% for message in messages %}{{ message.role }} says {{ message.content }}{% endfor %}"
    )
    args = ['--hf-overrides={"max_position_embeddings": 128}', f"--generation-config={folder}"]
    args.append('--override-generation-config={"temperature": 0}')
    with Server(str(small), *args, f"--chat-template={folder}/template") as server:
        yield server


@pytest.fixture(scope="module")
def filed(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    lines = [
        f"model: {small}",
        "max-model-len: 100",
        "block_size: 8",
        "max-num-seqs: 1",
        "served-model-name: [from-file]",
        "chat-template: '{{ messages[0].content }}'",
    ]
    file = tmp_path_factory.mktemp("filed") / "options.yaml"
    file.write_text("\n".join(lines))
    with Server(f"--config={file}", "--max-model-len=64") as server:
        yield server


@dataclass(frozen=True)
class Draws:
    greedy: list[int]
    unseeded: list[list[int]]


@pytest.fixture(scope="module")
def dummies(tmp_path_factory: pytest.TempPathFactory) -> tuple[Draws, Draws, Draws]:
    """Answers of dummy weights with seeds 1, 1 and 2. There are no weights in the directory."""
    folder = make_qwen3(tmp_path_factory.mktemp("bare") / "model", tie_word_embeddings=False)
    (folder / "model.safetensors").unlink()
    return draws(folder, 1), draws(folder, 1), draws(folder, 2)


def draws(folder: Path, seed: int) -> Draws:
    with Server(str(folder), "--load-format=dummy", f"--seed={seed}") as server:
        greedy = tokens_of(server, "Hello", temperature=0, max_tokens=8)
        return Draws(greedy, [tokens_of(server, "Hello", temperature=1, max_tokens=8) for _ in range(2)])


def test_model(described: Server, small: Path) -> None:
    assert [card["id"] for card in model_cards(described)] == [str(small)]


def test_load_format(dummies: tuple[Draws, Draws, Draws]) -> None:
    assert all(len(set(one.greedy)) > 1 for one in dummies)


def test_seed(dummies: tuple[Draws, Draws, Draws]) -> None:
    """Sets the dummy weights, and the seeds of requests without one."""
    one, again, other = dummies
    assert one == again
    assert one.greedy != other.greedy
    assert one.unseeded[0] != one.unseeded[1]


def test_hf_overrides(described: Server) -> None:
    assert [card["max_model_len"] for card in model_cards(described)] == [128]


def test_generation_config_of_another_directory(described: Server) -> None:
    answer = chat(described, "Hello", ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 5


def test_override_generation_config(described: Server) -> None:
    asked: dict[str, Any] = {"prompt": list(range(900, 930)), "max_tokens": 5, "seed": 5}
    default = tokens_of(described, **asked)
    assert default == tokens_of(described, **asked, temperature=0.0) != tokens_of(described, **asked, temperature=2.0)
    sources = "generation_config.json and --override-generation-config"
    assert f"sampling defaults of {sources}: temperature 0, max_tokens 5" in described.log


def test_chat_template(described: Server) -> None:
    answer = chat(described, "Hello", max_tokens=4, ignore_eos=True)
    same = described.complete("user says Hello", temperature=0, max_tokens=4, ignore_eos=True)
    assert answer["prompt_token_ids"] == same["prompt_token_ids"]
    assert answer["choices"][0]["token_ids"] == same["token_ids"]


def test_chat_template_itself_instead_of_a_file(filed: Server) -> None:
    ids = [chat(filed, "Hello", max_tokens=1)["prompt_token_ids"], filed.complete("Hello")["prompt_token_ids"]]
    assert ids[0] == ids[1]


def test_config(filed: Server) -> None:
    """The file sets options; a flag overrides it."""
    (card,) = model_cards(filed)
    assert (card["id"], card["max_model_len"]) == ("from-file", 64)
    assert filed.stats().num_blocks == 64 / 8
