"""Command lines from vLLM's documents start and answer; the log names the flags that have no effect."""

from pathlib import Path

import pytest

from tests.e2e.harness import Server
from tests.options.vllm.recipes import STARTING, Recipe
from tests.options.vllm.test_recipes import words

KEY = {"Authorization": "Bearer token-abc123"}  # of one of the command lines


@pytest.mark.parametrize("recipe", STARTING, ids=lambda recipe: recipe.line)
def test_it_starts_and_answers(recipe: Recipe, tmp_path: Path) -> None:
    with Server(*words(recipe, tmp_path)) as server:
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        answer = server.post("/v1/chat/completions", body, headers=KEY)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] > 0
        told = [line for line in server.lines if "have no effect here" in line]
    assert len(told) == bool(recipe.without_effect)
    assert [flag for flag in recipe.without_effect if flag not in "".join(told)] == []
