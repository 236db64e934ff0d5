"""The chat templates of checkpoints are stored unchanged, and each renders whole conversations with calls."""

import copy
import functools
import hashlib
import json
from typing import Any

import pytest
from transformers import AutoTokenizer

import demo
from tests.tokenizer.checkpoint_templates import (
    CALLS_AS_TEXT,
    FOLDER,
    NAMES,
    SOURCES,
    WITHOUT_CONTENT,
    assistant_text,
    checkpoint_template,
    markers,
    rendered,
    source,
)

ARGUMENTS = {"city": 'Köln "am Rhein"', "options": {"days": [1, 2], "unit": None}, "name": "天气 <b>&</b>"}
WORDS = ("Köln", "am Rhein", "天气 <b>&</b>", "days")  # parts of the arguments that no notation changes
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Tells the weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "options": {"type": "object"},
                    "name": {"type": "string"},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "get_time", "description": "d", "parameters": {"type": "object", "properties": {}}},
    },
]
WITHOUT_SYSTEM_ROLE = {"gemma2"}
# Templates that render the reasoning of the last turn, and those that leave tools out.
WITH_REASONING = {
    *("qwen3", "qwen3.5", "nemotron3-nano", "glm4.6", "glm4.7-flash", "minimax-m2", "gpt-oss", "seed-oss"),
    *("lfm2.5", "gemma4"),
}
WITHOUT_TOOLS = {"deepseek-r1-distill", "deepseek-v3.1", "gemma2", "smollm3", "phi3.5-mini"}


def call(number: int, name: str, arguments: Any) -> dict[str, Any]:
    text = json.dumps(arguments, ensure_ascii=False)
    return {"id": f"abcdefgh{number}", "type": "function", "function": {"name": name, "arguments": text}}


def result(number: int, content: str, **more: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"abcdefgh{number}", "content": content, **more}


CALLING = {
    "role": "assistant",
    "content": "Let me look.",
    "reasoning": "They want weather and time.",
    "tool_calls": [call(1, "get_weather", ARGUMENTS), call(2, "get_time", {})],
}
SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "How is it there?"}
RESULTS = [result(1, "It rains."), result(2, "Noon.")]
ANSWER = {"role": "assistant", "content": "Rain at noon."}
LAST = {"role": "user", "content": "Thank you."}


@pytest.mark.parametrize("name", NAMES)
def test_it_is_stored_as_its_source_has_it(name: str) -> None:
    assert hashlib.sha256((FOLDER / f"{name}.jinja").read_bytes()).hexdigest() == SOURCES[name]["sha256"]


def test_each_file_has_a_source_that_says_all() -> None:
    assert sorted(NAMES) == sorted(path.stem for path in FOLDER.glob("*.jinja"))
    needed = {"model", "url", "file", "licence", "tool_format", "reasoning_format", "added_tokens", "special_tokens"}
    for name in NAMES:
        assert needed | {"end_of_turn", "variables", "sha256"} == SOURCES[name].keys() - {"edited"}
        assert len(markers(name)) == len(set(markers(name))), name
        assert set(SOURCES[name]["end_of_turn"]) <= set(markers(name))
    assert len({SOURCES[name]["tool_format"] for name in NAMES} - {""}) >= 12


@pytest.mark.parametrize("name", NAMES)
def test_a_whole_conversation_loses_nothing(name: str) -> None:
    system = [] if name in WITHOUT_SYSTEM_ROLE else [SYSTEM]
    text = rendered(name, [*system, QUESTION, CALLING, *RESULTS, ANSWER, LAST], TOOLS)
    contents = [message["content"] for message in (*system, QUESTION, *RESULTS, ANSWER, LAST)]
    if name not in WITHOUT_CONTENT | {"gpt-oss"}:  # gpt-oss: it is reasoning there, and left out after an answer
        contents.append(CALLING["content"])
    assert [content for content in (*contents, *WORDS) if content not in text] == []
    order = [text.rindex(content) for content in ("How is it there?", "Köln", "It rains.", "Noon.", "Rain at noon.")]
    assert order == sorted(order)
    assert text.count("get_time") > rendered(name, [*system, QUESTION], TOOLS).count("get_time")


@pytest.mark.parametrize("name", NAMES)
def test_the_turn_of_an_assistant_alone(name: str) -> None:
    calling = CALLING
    if name in ("llama3.1", "llama3.2", "gpt-oss"):  # one call a message
        calling = {**CALLING, "tool_calls": CALLING["tool_calls"][:1]}
    tail, text, end = assistant_text(name, calling, TOOLS)
    assert rendered(name, [QUESTION], TOOLS).endswith(tail)
    assert all(word in text for word in ("get_weather", *WORDS))
    if name != "deepseek-r1-distill":  # it writes the content as a message after the calls
        assert ("Let me look." in text) == (name not in WITHOUT_CONTENT)
    assert ("weather and time" in text) == (name in WITH_REASONING)
    assert "How is it there?" not in text and "It rains." not in text
    assert end in SOURCES[name]["end_of_turn"] or not SOURCES[name]["end_of_turn"]


@pytest.mark.parametrize("name", ["qwen3.5", "glm4.7-flash", "nemotron3-nano"])
def test_a_turn_without_the_thinking_that_the_prompt_began(name: str) -> None:
    tail, text, _ = assistant_text(name, ANSWER, None)
    assert tail.rstrip().endswith("<think>") and text.lstrip().startswith("</think>") and text.endswith("Rain at noon.")


@functools.cache
def hf_tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(demo.CHECKPOINT)


def transformers_text(name: str, messages: list[dict[str, Any]]) -> str:
    """Returns transformers' text. It gets the arguments of calls as objects, as it expects them."""
    messages = copy.deepcopy(messages)
    for message in messages:
        for one in message.get("tool_calls", ()):
            one["function"]["arguments"] = json.loads(one["function"]["arguments"])
    return str(
        hf_tokenizer().apply_chat_template(
            messages,
            tools=TOOLS,
            chat_template=source(name),
            add_generation_prompt=True,
            tokenize=False,
            **SOURCES[name]["variables"],
        )
    )


@pytest.mark.parametrize("name", [name for name in NAMES if name not in CALLS_AS_TEXT | {"phi4-mini"}])
def test_what_a_template_takes_equals_transformers(name: str) -> None:
    """Phi 4 mini's would get a dictionary's Python notation."""
    calling = {"role": "assistant", "content": "", "tool_calls": [call(1, "get_weather", ARGUMENTS)]}
    messages = [SYSTEM, QUESTION, calling, result(1, "It rains.", name="get_weather"), ANSWER, LAST]
    assert rendered(name, messages, TOOLS) == transformers_text(name, messages)


@pytest.mark.parametrize("name", NAMES)
def test_tools_that_a_template_leaves_out_are_known(name: str) -> None:
    assert checkpoint_template(name).ignores_tools({}) == (name in WITHOUT_TOOLS)
