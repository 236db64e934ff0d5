"""docs/serving.md: it is up to date, complete, and its examples are commands and files that are accepted."""

from pathlib import Path

import pytest
import yaml

from services.options.command_line import parse
from services.options.commands import COMMAND_OPTIONS, flag_of, settings_of_command
from services.options.serving_page import serving_page
from services.options.setting import boolean

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"
LINES = serving_page().splitlines()
EXAMPLES = [line.partition("#")[0].split()[1:] for line in LINES if line.startswith("tandem ") and "--help" not in line]


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == serving_page(), "run `make docs`"


@pytest.mark.parametrize("command", COMMAND_OPTIONS)
def test_every_option_has_a_row(command: str) -> None:
    for name, one in settings_of_command(command).items():
        title = name.upper() if one.positional else flag_of(name)
        if one.in_environment_only:
            assert one.env[0] in serving_page()
        else:
            assert any(line.startswith(f"| `{title}`") for line in LINES), title


def test_every_row_has_an_option_a_default_and_a_sentence() -> None:
    rows = [line.split(" | ") for line in LINES if line.startswith(("| `--", "| `MODEL"))]
    assert len(rows) > 40
    for row in rows:
        option, default, _, sentence = row
        assert option.endswith("`") and default.strip() and sentence.endswith(". |"), row


def test_flags_of_booleans_are_both_listed() -> None:
    booleans = [name for name, one in settings_of_command("serve").items() if one.parse is boolean]
    assert booleans
    assert [
        name for name in booleans if f"| `{flag_of(name)}`, `{flag_of('no_' + name)}` |" not in serving_page()
    ] == []


@pytest.mark.parametrize("argv", EXAMPLES, ids=" ".join)
def test_an_example_is_accepted(argv: list[str]) -> None:
    parse(argv[0], argv[1:])


def test_the_example_of_a_file_is_accepted(tmp_path: Path) -> None:
    text = serving_page().partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "options.yaml").write_text(text, encoding="utf-8")
    values = parse("serve", [f"--config={tmp_path / 'options.yaml'}"]).role_values
    assert values.keys() == {key.replace("-", "_") for key in yaml.safe_load(text)}
    assert values["kv_cache_memory_bytes"] == 4 * 2**30
