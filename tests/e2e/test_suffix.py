"""Completions between a prompt and a suffix, by the tokens that the model has for that."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer

from tests.checkpoints import DEMO_VOCAB_SIZE, make_qwen3
from tests.e2e.api import MODEL, TEXT, ask, choice, error_of, fold, stream
from tests.e2e.harness import Server

MARKS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
GAP: dict[str, Any] = {"prompt": "def add(a, b):\n    ", "suffix": "\n    return total", "temperature": 0}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = make_qwen3(tmp_path_factory.mktemp("model"), vocab_size=DEMO_VOCAB_SIZE + 16)
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(mark, normalized=False, special=True) for mark in MARKS])
    tokenizer.save(str(path / "tokenizer.json"))
    return path


@pytest.fixture(scope="module")
def server(checkpoint: Path) -> Iterator[Server]:
    with Server(str(checkpoint), "--dtype=float32", f"--served-model-name={MODEL}") as server:
        yield server


def test_the_prompt_has_the_models_format_and_the_answer_is_its_own(server: Server, checkpoint: Path) -> None:
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    text = f"{MARKS[0]}{GAP['prompt']}{MARKS[1]}{GAP['suffix']}{MARKS[2]}"
    answer = ask(server, TEXT, **GAP)
    assert answer["choices"][0]["prompt_token_ids"] == tokenizer.encode(text).ids
    assert answer["usage"]["prompt_tokens"] == len(tokenizer.encode(text).ids)
    assert choice(server, TEXT, **GAP) == choice(server, TEXT, **{**GAP, "prompt": text, "suffix": None})
    assert choice(server, TEXT, **GAP) != choice(server, TEXT, **{**GAP, "suffix": ""})
    assert fold(stream(server, TEXT, **GAP)) == [choice(server, TEXT, **GAP)]


def test_each_of_several_prompts_gets_the_suffix(server: Server) -> None:
    both = ask(server, TEXT, **{**GAP, "prompt": ["one", "two"]})["choices"]
    alone = [ask(server, TEXT, **{**GAP, "prompt": prompt})["choices"][0] for prompt in ("one", "two")]
    assert [one["text"] for one in both] == [one["text"] for one in alone]
    assert [one["prompt_token_ids"] for one in both] == [one["prompt_token_ids"] for one in alone]


def test_a_shortened_prompt_keeps_the_markers(server: Server) -> None:
    whole = ask(server, TEXT, **GAP)["choices"][0]["prompt_token_ids"]
    cut = ask(server, TEXT, **GAP, truncate_prompt_tokens=len(whole) - 2)["choices"][0]["prompt_token_ids"]
    assert cut == [whole[0], *whole[3:]]
    error = error_of(server.post(TEXT, {**GAP, "max_tokens": 2, "truncate_prompt_tokens": 2}), 400)
    assert error["param"] == "truncate_prompt_tokens" and "those around prompt and suffix are 3" in error["message"]


def test_token_ids_have_no_suffix(server: Server) -> None:
    error = error_of(server.post(TEXT, {"prompt": [1, 2], "suffix": "after"}), 400)
    assert error["param"] == "suffix" and "a prompt of text" in error["message"]


def test_a_rendered_prompt_has_the_same_tokens(server: Server) -> None:
    rendered = server.post(f"{TEXT}/render", {**GAP, "max_tokens": 4})
    assert rendered.status_code == 200, rendered.text
    found = rendered.json()
    (one,) = found if isinstance(found, list) else [found]
    assert one["token_ids"] == ask(server, TEXT, **GAP)["choices"][0]["prompt_token_ids"]
