"""Command lines from vLLM's documents are read by `tandem serve`: what is missing is named, all of it, in one line."""

import shlex
from pathlib import Path

import pytest

import demo
from services.cli import main
from services.options.command_line import parse
from tests.options.vllm.recipes import REFUSED, STARTING, Recipe


def words(recipe: Recipe, folder: Path) -> list[str]:
    """Returns the command line with the demo's checkpoint as its model; writes its file into `folder`."""
    file = folder / ("recipe.yaml" if "--config" in recipe.line else "recipe.jinja")
    file.write_text(recipe.file)
    places = {"MODEL": str(demo.CHECKPOINT), "FILE": str(file)}
    return [places.get(word, word) for word in shlex.split(recipe.line)]


def test_there_are_twenty_from_many_documents() -> None:
    recipes = (*STARTING, *REFUSED)
    assert len(recipes) == 20 and len({recipe.line for recipe in recipes}) == 20
    assert len({recipe.source for recipe in recipes}) > 12
    assert all(recipe.source.startswith("https://") for recipe in recipes)
    assert all(recipe.missing for recipe in REFUSED) and not any(recipe.missing for recipe in STARTING)


@pytest.mark.parametrize("recipe", REFUSED, ids=lambda recipe: recipe.line)
def test_it_is_refused_with_what_is_missing(recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *words(recipe, tmp_path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith("tandem serve: error: ") and told.count("\n") == 1
    assert [part for part in recipe.missing if part not in told] == []


@pytest.mark.parametrize("recipe", STARTING, ids=lambda recipe: recipe.line)
def test_it_is_read_and_its_flags_without_effect_are_known(recipe: Recipe, tmp_path: Path) -> None:
    options = parse("serve", words(recipe, tmp_path))
    assert options.role_values["model"] == str(demo.CHECKPOINT)
    assert sorted(options.without_effect) == sorted(recipe.without_effect)
