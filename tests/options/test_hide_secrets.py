"""Secrets of the command line move into the environment, and nothing else changes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.options.command_line import parse
from services.options.declarations import ServeOptions
from services.options.hide_secrets import without_secrets

KEYS = ("TANDEM_API_KEY", "TANDEM_ADMIN_API_KEY")


@pytest.mark.parametrize("command", ["serve", "shim"])
def test_both_ways_of_writing(command: str) -> None:
    argv = ["--api-key", "a", "--port=1", "--api-key=b c", "--admin-api-key", "first", "--admin-api-key=-5"]
    assert without_secrets(command, argv) == (["--port=1"], {"TANDEM_API_KEY": "a\nb c", "TANDEM_ADMIN_API_KEY": "-5"})


@pytest.mark.parametrize(
    ("command", "argv"),
    [
        ("serve", ["demo", "--api-key-file=keys", "--hf-overrides.a", "5", "--no-grpc-no-key", "--", "x"]),
        ("serve", ["--help"]),
        ("worker", ["demo", "--port", "--seed=3"]),
        ("new-secret", ["--out=x"]),
    ],
)
def test_other_arguments_stay(command: str, argv: list[str]) -> None:
    assert without_secrets(command, argv) == (argv, {})


def test_vllms_spelling_of_a_key_is_hidden_as_well() -> None:
    """Otherwise `--api_key` would leave it on the command line, which `ps` shows to every user."""
    argv = ["demo", "--api_key", "a", "-tp", "1", "--api_key=b"]
    rest = ["demo", "--tensor-parallel-size", "1"]
    assert without_secrets("serve", argv) == (rest, {"TANDEM_API_KEY": "a\nb"})
    assert parse("serve", rest).without_effect == ("--tensor-parallel-size",)


def test_several_keys_behind_one_flag_are_hidden() -> None:
    assert without_secrets("serve", ["demo", "--api-key", "a", "b"]) == (["demo"], {"TANDEM_API_KEY": "a\nb"})


def test_what_follows_a_secret_is_no_value_of_the_flag_before_it() -> None:
    rest, variables = without_secrets("serve", ["--served-model-name", "a", "b", "--api-key", "k", "demo"])
    assert (rest, variables) == (["--served-model-name=a", "--served-model-name=b", "demo"], {"TANDEM_API_KEY": "k"})


TEXT = st.text(st.characters(min_codepoint=33, max_codepoint=0x24F, categories=["L", "N", "P", "S"]), min_size=1)
KEY = TEXT.filter(lambda text: not text.startswith("-"))
OTHERS = st.sampled_from(
    [
        ["--port=1"],
        ["--host", "::1"],
        ["--no-grpc-no-key"],
        ["--served-model-name", "a", "b"],
        ["--cudagraph-capture-sizes", "1", "2"],
        ["--hf-overrides.x", "1"],
    ]
)
SECRETS = st.tuples(st.sampled_from(["--api-key", "--admin-api-key"]), KEY, st.booleans()).map(
    lambda found: [f"{found[0]}={found[1]}"] if found[2] else [found[0], found[1]]
)


@settings(deadline=None)
@given(st.lists(OTHERS | SECRETS, max_size=6), st.sampled_from([[], ["demo"]]), st.booleans())
def test_the_options_are_the_same(parts: list[list[str]], model: list[str], is_first: bool) -> None:
    if model and not is_first and parts and parts[-1][-1] in ("b", "2"):
        model = []  # it would be one more value of the last flag
    texts = [text for part in parts for text in part]
    argv = [*model, *texts] if is_first else [*texts, *model]
    with pytest.MonkeyPatch.context() as patch:
        for name in KEYS:
            patch.delenv(name, raising=False)
        expected: ServeOptions = parse("serve", argv)
        rest, variables = without_secrets("serve", argv)
        for name, value in variables.items():
            patch.setenv(name, value)
        assert parse("serve", rest) == expected
    assert not [text for text in rest if "api-key" in text]
