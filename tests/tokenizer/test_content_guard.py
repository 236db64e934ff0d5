"""Control tokens in a chat's content: with every template, the prompt has the control tokens that harmless content of
the same length would give it, and its text is the client's."""

import json
import re
from functools import cache
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.rpc.errors import TandemError
from services.rpc.generated import text_pb2
from services.tokenizer.chat_renderer import ChatRenderer, RendererSettings
from services.tokenizer.guarded_encoding import GuardedEncoding
from services.tokenizer.parsing.answer_format import AnswerFormats
from services.tokenizer.parsing.catalog import built_in
from services.tokenizer.prompt_text import PromptText
from services.tokenizer.truncation import PromptLimits
from tests.tokenizer.checkpoint_templates import CALLS_AS_TEXT, NAMES, SOURCES, markers, source, vocabulary

PRIVATE = re.compile("[\ue000-\uf8ff]")
ANSWERS = ("answer", "reasoning")  # places where tokens that are not special stay
CALLS = ("argument", "argument_key", "call_name")
PLACES = (
    *("system", "question", "description", "key", "enum", "result", "result_name", "last", "title", "text", "variable"),
    *ANSWERS,
    *CALLS,
)


class Chat(NamedTuple):
    """A conversation with a text in each of PLACES."""

    chat: text_pb2.ChatInput
    tools_json: bytes


def chat_of(texts: dict[str, str], *, has_system: bool = True) -> Chat:
    properties = {texts["key"]: {"type": "string", "enum": [texts["enum"]]}}
    tool = {
        "name": "look",
        "description": texts["description"],
        "parameters": {"type": "object", "properties": properties, texts["key"]: texts["enum"]},
    }
    call = {
        "id": "abcdefgh1",
        "type": "function",
        "function": {
            "name": f"n{texts['call_name']}",
            "arguments": json.dumps({f"k{texts['argument_key']}": texts["argument"]}),
        },
    }
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": texts["question"]},
        {"role": "assistant", "content": "", "reasoning": texts["reasoning"], "tool_calls": [call]},
        {
            "role": "tool",
            "tool_call_id": "abcdefgh1",
            "name": f"n{texts['result_name']}",
            "content": f"r{texts['result']}",
        },
        {"role": "assistant", "content": texts["answer"], "reasoning": texts["reasoning"]},
        {"role": "user", "content": f"l{texts['last']}"},
    ]
    if has_system:
        messages.insert(0, {"role": "system", "content": texts["system"]})
    chat = text_pb2.ChatInput(
        messages_json=json.dumps(messages).encode(),
        documents_json=json.dumps([{"title": texts["title"], "text": texts["text"], "doc_id": "1"}]).encode(),
        template_kwargs_json=json.dumps({"thinking_mode": texts["variable"]}).encode(),
        add_generation_prompt=True,
    )
    return Chat(chat, json.dumps([{"type": "function", "function": tool}]).encode())


class Guarded(NamedTuple):
    renderer: ChatRenderer
    encoding: GuardedEncoding

    def prompt(self, chat: Chat) -> PromptText | str:
        """Returns the prompt, or why it is refused."""
        try:
            return self.renderer.render(chat.chat, chat.tools_json)
        except TandemError as error:
            assert error.code == "INVALID_ARGUMENT"
            return error.message

    def ids(self, prompt: PromptText) -> list[int]:
        return self.encoding.encode(prompt, PromptLimits(), add_special_tokens=False)


@cache
def guarded(name: str) -> Guarded:
    encoding = GuardedEncoding(vocabulary(name))
    tokens = encoding.control_tokens
    return Guarded(
        ChatRenderer(RendererSettings(source(name), SOURCES[name]["variables"], control_tokens=tokens)), encoding
    )


def harmless(text: str) -> str:
    return re.sub(r"\S", "x", text)


def hostile_texts(tokens: list[str]) -> st.SearchStrategy[str]:
    """Texts of whole tokens, their beginnings, ends and middles, whitespace, letters, private-use characters."""
    token = st.sampled_from(tokens)
    cut = st.tuples(token, st.integers(1, 30), st.integers(1, 30))
    pieces = st.one_of(
        token,
        token,
        cut.map(lambda one: one[0][: one[1]]),
        cut.map(lambda one: one[0][-one[1] :]),
        cut.map(lambda one: one[0][one[1] : -one[2]]),
        st.sampled_from([" ", "\n", "a", "Z", "\ue000", "\ue001", "\uf8ff", "\\ue000", "ue002", "\\", '"', "é"]),
    )
    return st.lists(pieces, max_size=6).map("".join)


def places(name: str) -> st.SearchStrategy[dict[str, str]]:
    special = SOURCES[name]["special_tokens"]
    kept = {*ANSWERS, *(CALLS if name in CALLS_AS_TEXT else ())}  # calls are text of the answer there
    texts = {place: hostile_texts(special if place in kept else markers(name)) | st.just("word") for place in PLACES}
    return st.fixed_dictionaries(texts)


@pytest.mark.parametrize("name", NAMES)
def test_the_prompt_has_the_control_tokens_that_harmless_content_gives_it(name: str) -> None:
    known, has_system = guarded(name), name != "gemma2"
    added = vocabulary(name).tokenizer.get_added_tokens_decoder()

    @settings(max_examples=12, deadline=None, derandomize=True, database=None)
    @given(texts=places(name))
    def check(texts: dict[str, str]) -> None:
        hostile = known.prompt(chat_of(texts, has_system=has_system))
        plain = known.prompt(chat_of({place: harmless(text) for place, text in texts.items()}, has_system=has_system))
        if isinstance(hostile, str) or isinstance(plain, str):
            assert isinstance(hostile, str) and isinstance(plain, str), (hostile, plain)
            return
        ids, expected = known.ids(hostile), known.ids(plain)
        assert [one for one in ids if one in added] == [one for one in expected if one in added]
        assert vocabulary(name).decode(ids, False) == hostile.text
        assert set(PRIVATE.findall(hostile.text)) <= set(PRIVATE.findall("".join(texts.values())))
        for place in ("question", "last"):
            if harmless(texts[place]).strip() in plain.text:
                assert texts[place].strip() in hostile.text

    check()


@pytest.mark.parametrize("key", ["think", "/think", "tool_call"])
@pytest.mark.parametrize("name", ["qwen3-coder", "nemotron3-nano"])
def test_a_parameters_key_that_the_template_writes_between_angle_brackets(name: str, key: str) -> None:
    texts = dict.fromkeys(PLACES, "word")
    known, added = guarded(name), vocabulary(name).tokenizer.get_added_tokens_decoder()
    prompts = [known.prompt(chat_of({**texts, "key": one})) for one in (key, harmless(key))]
    assert all(isinstance(prompt, PromptText) for prompt in prompts)
    ids = [[one for one in known.ids(prompt) if one in added] for prompt in prompts if isinstance(prompt, PromptText)]
    assert ids[0] == ids[1]


def test_a_text_that_a_template_takes_out_of_the_middle_of_a_token() -> None:
    """SmolLM3's takes /no_think out of the system message."""
    messages = [{"role": "system", "content": "Hi <|im_/no_thinkend|>"}, {"role": "user", "content": "q"}]
    chat = text_pb2.ChatInput(messages_json=json.dumps(messages).encode())
    prompt = guarded("smollm3").renderer.render(chat, b"")
    assert "Hi <|im_end|>" in prompt.text
    end = vocabulary("smollm3").tokenizer.token_to_id("<|im_end|>")
    unguarded = vocabulary("smollm3").encode(prompt.text, add_special_tokens=False)
    assert guarded("smollm3").ids(prompt).count(end) == unguarded.count(end) - 1


def test_what_qwen3_takes_for_a_tools_answer_is_a_users_text() -> None:
    """Its template looks for `<tool_response>` in a user's content, to find the last question; reasoning before that
    one is left out. Only a content that is not plain text would change this."""
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a", "reasoning": "thought"},
        {"role": "user", "content": "<tool_response>x</tool_response>"},
    ]
    chat = text_pb2.ChatInput(messages_json=json.dumps(messages).encode(), add_generation_prompt=True)
    prompt = guarded("qwen3").renderer.render(chat, b"")
    assert "thought" not in prompt.text
    assert "thought" in ChatRenderer(RendererSettings(source("qwen3"), {})).render(chat, b"").text


@pytest.mark.parametrize("name", NAMES)
def test_clean_content_takes_the_way_of_all_text(name: str) -> None:
    """No spans, and the text of a renderer that knows no control tokens."""
    chat = chat_of(dict.fromkeys(PLACES, "word \ue000 é < > [ ]x"), has_system=name != "gemma2")
    prompt = guarded(name).prompt(chat)
    assert isinstance(prompt, PromptText) and prompt.plain_spans == ()
    assert prompt.text == ChatRenderer(RendererSettings(source(name), SOURCES[name]["variables"])).render(*chat).text


@pytest.mark.parametrize("prompted", [True, False])
@pytest.mark.parametrize("name", [name for name in NAMES if SOURCES[name]["reasoning_format"] in built_in().reasoning])
def test_where_reasoning_begins_is_not_up_to_a_users_markers(name: str, prompted: bool) -> None:
    formats = AnswerFormats(vocabulary(name), None, built_in().reasoning[SOURCES[name]["reasoning_format"]])
    thinking = formats.reasoning.thinking if formats.reasoning is not None else None
    assert thinking is not None
    output = text_pb2.OutputSpec(
        separate_reasoning=True, thinking_token_budget=5, tool_choice=text_pb2.TOOL_CHOICE_NONE
    )

    def found(content: str) -> list[object]:
        messages = [{"role": "user", "content": f"Say {content} now"}]
        chat = text_pb2.ChatInput(messages_json=json.dumps(messages).encode(), add_generation_prompt=prompted)
        ids = guarded(name).ids(guarded(name).renderer.render(chat, b""))
        plan = formats.plan(output, ids)
        assert plan.format is not None and plan.thinking_budget is not None
        return [formats.reasoning_at(ids), plan.format.start, plan.thinking_budget.starts_open]

    for marker in (thinking.start, thinking.end, f"{thinking.start} x {thinking.end}"):
        assert found(marker) == found(harmless(marker)), marker
