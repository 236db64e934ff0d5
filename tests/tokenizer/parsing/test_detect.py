"""detect: every collected chat template finds its formats; options, plugin and response template; the log line."""

import json
import logging
import tomllib
from pathlib import Path
from typing import Any

import pytest

from services.errors import Fatal
from services.tokenizer.parsing.catalog import built_in
from services.tokenizer.parsing.detect import Formats, ModelFiles, Wanted, select_formats

TEMPLATES = Path(__file__).parent.parent / "templates"
SOURCES: dict[str, dict[str, Any]] = tomllib.loads((TEMPLATES / "sources.toml").read_text())
QWEN3 = (TEMPLATES / "qwen3.jinja").read_text()
GPT_OSS = (TEMPLATES / "gpt-oss.jinja").read_text()
# Where a template finds another table than the one with vLLM's name for the model.
OTHER_TOOLS = {
    "granite4": "hermes",  # the same form
    "smollm3": "",  # this edit of the template has no tools
}
OTHER_REASONING = {
    "qwq": "qwen3",  # the prompt opens the reasoning, and both tables read the prompt's end
    "deepseek-r1-distill": "qwen3",  # likewise
    "deepseek-v3.1": "qwen3",  # likewise
    "nemotron3-nano": "qwen3",  # likewise
    "granite3.3": "qwen3",  # its prompt asks for <think>; only Granite 3.2 says "Here is my thought process:"
}
PLUGIN: dict[str, Any] = {
    "tools": ["mine"],
    "detect": {"template": ["<my_call>"]},
    "markers": {"open": "<my_call>", "close": "</my_call>"},
    "states": {
        "content": {"read": "content", "on": {"open": "call"}},
        "call": {"read": "json_call", "on": {"close": "content", "done": {"to": "content", "do": ["end"]}}},
    },
}
RESPONSE_TEMPLATE: dict[str, Any] = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {"thinking": {"open": "<thought>", "close": "</thought>"}},
}


def names(formats: Formats) -> tuple[str, str]:
    tools, reasoning = formats.tools, formats.reasoning
    return tools.tools[0] if tools else "", reasoning.reasoning[0] if reasoning else ""


@pytest.fixture
def plugin(tmp_path: Path) -> str:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(PLUGIN))
    return str(file)


@pytest.mark.parametrize("name", SOURCES)
def test_every_template_finds_its_formats(name: str) -> None:
    found = select_formats(Wanted(), ModelFiles((TEMPLATES / f"{name}.jinja").read_text()))
    tools = built_in().tools.get(OTHER_TOOLS.get(name, SOURCES[name]["tool_format"]))
    reasoning = built_in().reasoning.get(OTHER_REASONING.get(name, SOURCES[name]["reasoning_format"]))
    assert (found.tools, found.reasoning) == (tools, reasoning)


def test_every_format_is_found_by_a_template() -> None:
    """But for Granite 3.2's reasoning: its template is not among the collected ones."""
    found = [select_formats(Wanted(), ModelFiles((TEMPLATES / f"{name}.jinja").read_text())) for name in SOURCES]
    assert {id(one.tools) for one in found} - {id(None)} == {id(table) for table in built_in().tools.values()}
    reasoning = {id(table) for name, table in built_in().reasoning.items() if name != "granite"}
    assert {id(one.reasoning) for one in found} - {id(None)} == reasoning


def test_granite_3_2() -> None:
    said = "{{ 'Write your thoughts after \\'Here is my thought process:\\' and …' }}"
    assert names(select_formats(Wanted(), ModelFiles(said))) == ("", "granite")


def test_nothing_is_found_without_a_template() -> None:
    assert names(select_formats(Wanted(), ModelFiles(model_type="qwen3"))) == ("", "")


def test_the_models_type_where_the_template_says_nothing() -> None:
    assert names(select_formats(Wanted(), ModelFiles("{{ x }}", "gpt_oss"))) == ("openai", "openai_gptoss")
    assert names(select_formats(Wanted(), ModelFiles(QWEN3, "gpt_oss"))) == ("hermes", "qwen3")


def test_one_log_line_says_which_and_why(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    select_formats(Wanted(tools="none"), ModelFiles(QWEN3))
    select_formats(Wanted(reasoning="deepseek_r1"), ModelFiles(QWEN3))
    select_formats(Wanted(), ModelFiles("{{ messages }}"))
    unknown = "not found by the chat template or the model's type"
    assert caplog.messages == [
        "tool calls: none (--tool-call-parser is none); reasoning: qwen3 (the chat template has <think> and </think>)",
        "tool calls: hermes (the chat template has <tool_call> and arguments);"
        " reasoning: deepseek_r1 (--reasoning-parser)",
        f"tool calls: none ({unknown}; --tool-call-parser names one);"
        f" reasoning: none ({unknown}; --reasoning-parser names one)",
    ]


def test_names_win(caplog: pytest.LogCaptureFixture) -> None:
    assert names(select_formats(Wanted("mistral", "none"), ModelFiles(QWEN3))) == ("mistral", "")
    assert names(select_formats(Wanted("none", "mistral"), ModelFiles(QWEN3))) == ("", "mistral")
    caplog.set_level(logging.INFO)
    assert names(select_formats(Wanted("qwen3_xml", ""), ModelFiles(QWEN3))) == ("qwen3_coder", "qwen3")
    assert "tool calls: qwen3_xml (--tool-call-parser)" in caplog.text


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        Fatal, match="--tool-call-parser: there is no 'hermess', only glm45, .*hermes, .*qwen3_xml, .*none"
    ):
        select_formats(Wanted(tools="hermess"), ModelFiles())
    with pytest.raises(Fatal, match="--reasoning-parser: there is no 'hermes', only deepseek_r1, .*seed_oss, none"):
        select_formats(Wanted(reasoning="hermes"), ModelFiles())


def test_a_table_of_whole_answers_goes_with_no_other_one() -> None:
    files = ModelFiles(GPT_OSS)
    assert names(select_formats(Wanted(tools="none"), files)) == ("", "openai_gptoss")
    assert names(select_formats(Wanted(tools="hermes"), files)) == ("hermes", "")
    assert names(select_formats(Wanted(reasoning="qwen3"), files)) == ("", "qwen3")
    for wanted in (Wanted("openai", "qwen3"), Wanted("hermes", "openai_gptoss")):
        with pytest.raises(Fatal, match="openai describes whole answers, so --(reasoning|tool-call)-parser must be"):
            select_formats(wanted, ModelFiles(QWEN3))


def test_a_plugin_is_selected_by_name_or_found_first(plugin: str) -> None:
    assert names(select_formats(Wanted("mine", plugin=plugin), ModelFiles(QWEN3))) == ("mine", "qwen3")
    assert names(select_formats(Wanted(plugin=plugin), ModelFiles(QWEN3))) == ("hermes", "qwen3")
    assert names(select_formats(Wanted(plugin=plugin), ModelFiles(f"{QWEN3}<my_call>"))) == ("mine", "qwen3")
    calls = {"open": "<a>", "close": "</a>", "content": "json", "transform": {"function": "{content}"}}
    files = ModelFiles(f"{QWEN3}<my_call>", response_template={"fields": {"tool_calls": calls}})
    assert names(select_formats(Wanted(plugin=plugin), files)) == ("mine", "qwen3")
    assert "mine" not in built_in().tools


def test_a_plugin_that_nothing_selects_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({**PLUGIN, "detect": []}))
    assert names(select_formats(Wanted("mine", plugin=str(file)), ModelFiles(QWEN3))) == ("mine", "qwen3")
    with pytest.raises(Fatal, match="nothing selects mine: it has no `detect`, and no option names it"):
        select_formats(Wanted(plugin=str(file)), ModelFiles(f"{QWEN3}<my_call>"))


def test_a_plugin_takes_the_place_of_a_built_in_table(tmp_path: Path) -> None:
    file = tmp_path / "hermes.json"
    file.write_text(json.dumps({**PLUGIN, "tools": ["hermes"]}))
    found = select_formats(Wanted("hermes", plugin=str(file)), ModelFiles())
    assert found.tools is not None and found.tools.markers["open"] == "<my_call>"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("parser.py", "class Parser: ...", "a plugin is a table .* no Python file as in vLLM: docs/tools.md"),
        ("a.toml", "tools = ", "a.toml is not a table of a format: "),
        ("a.toml", "tools = ['x']", "missing required field `markers`"),
        ("a.json", '{"markers": {}, "states": {}}', "a.json is not a table of a format: it has a name neither"),
        ("a.json", "[" * 100_000, "a.json is not a table of a format: "),
        ("none.toml", None, "none.toml is not a table of a format: .*No such file"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(Fatal, match=message):
        select_formats(Wanted(plugin=str(tmp_path / name)), ModelFiles(QWEN3))


def test_two_that_fit_are_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    both = f"{QWEN3}[TOOL_CALLS]"
    assert names(select_formats(Wanted(), ModelFiles(both))) == ("", "qwen3")
    assert "the model's files fit several: hermes, granite4, mistral; --tool-call-parser names one" in caplog.text


def test_the_response_template_wins_over_the_chat_template(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    found = select_formats(Wanted(), ModelFiles(QWEN3, response_template=RESPONSE_TEMPLATE))
    assert found.reasoning is not None and found.reasoning.markers["m0"] == "<thought>"
    assert found.tools is built_in().tools["hermes"]
    assert caplog.messages[-1].endswith("; reasoning: response_template (in tokenizer_config.json)")
    assert names(select_formats(Wanted(reasoning="qwen3"), ModelFiles("", "", RESPONSE_TEMPLATE))) == ("", "qwen3")


@pytest.mark.parametrize("template", [{"fields": {"thinking": {"open_pattern": "a|b"}}}, {"fields": 1}, [], "x", 0])
def test_a_response_template_that_is_not_known_has_no_effect(caplog: pytest.LogCaptureFixture, template: Any) -> None:
    caplog.set_level(logging.INFO)
    assert names(select_formats(Wanted(), ModelFiles(QWEN3, response_template=template))) == ("hermes", "qwen3")
    assert "response_template in tokenizer_config.json has no effect: " in caplog.text
