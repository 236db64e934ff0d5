"""No message vanishes: a developer message becomes one of the system, and one that a template drops is refused."""

import contextlib
from typing import Any

import pytest

from services.rpc.errors import TandemError
from services.tokenizer.render import ChatTemplate
from services.tokenizer.template_probe import CACHED_RESULTS, Message, ProbeCache, probe_variables
from services.tokenizer.template_roles import TemplateRoles
from tests.tokenizer.templates import CHATML, GEMMA2, GEMMA3, GPT_OSS, LLAMA3, MISTRAL, QWEN3

TEMPLATES = {
    "chatml": CHATML,
    "qwen3": QWEN3,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
    "gpt-oss": GPT_OSS,
}
USER = {"role": "user", "content": "Hi."}
ANSWER = {"role": "assistant", "content": "Hello."}
CALL = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def message(role: str, content: str = "Be brief.") -> dict[str, Any]:
    return {"role": role, "content": content}


def render(name: str, *messages: dict[str, Any]) -> str:
    template = ChatTemplate(TEMPLATES[name], {"bos_token": "<s>", "eos_token": "</s>"})
    return template.render(list(messages), None, {}, add_generation_prompt=True, continue_final_message=False)


@pytest.mark.parametrize("name", ["chatml", "llama3", "gpt-oss"])
def test_a_developer_message_stays_where_the_template_renders_the_role(name: str) -> None:
    text = render(name, message("developer"), USER)
    assert "Be brief." in text and "developer" in text


@pytest.mark.parametrize("name", ["qwen3", "mistral", "gemma3"])
def test_a_developer_message_becomes_one_of_the_system_elsewhere(name: str) -> None:
    """Where the template drops it (Qwen 3), and where it raises an error (Mistral, Gemma 3)."""
    text = render(name, message("developer"), USER)
    assert "Be brief." in text
    assert text == render(name, message("system"), USER)


@pytest.mark.parametrize("name", ["qwen3", "mistral"])
def test_a_later_developer_message_becomes_one_of_the_system(name: str) -> None:
    messages = [USER, ANSWER, message("developer"), USER]
    assert "Be brief." in render(name, *messages)
    assert render(name, *messages) == render(name, USER, ANSWER, message("system"), USER)


@pytest.mark.parametrize(
    ("name", "role", "before", "place"),
    [
        ("gpt-oss", "developer", 2, "after the first message"),
        ("gpt-oss", "system", 2, "after the first message"),
        ("gpt-oss", "martian", 0, "at the beginning"),
        ("qwen3", "martian", 0, "at the beginning"),
        ("qwen3", "martian", 1, "after the first message"),
    ],
)
def test_a_message_that_the_template_drops_is_refused_with_its_index(
    name: str, role: str, before: int, place: str
) -> None:
    expected = rf"messages\[{before}\]: the chat template renders no message of role '{role}' {place}"
    with pytest.raises(TandemError, match=expected) as caught:
        render(name, *[USER, ANSWER][:before], message(role), USER)
    assert (caught.value.code, caught.value.param) == ("INVALID_ARGUMENT", f"messages.{before}.role")


@pytest.mark.parametrize("name", ["chatml", "llama3"])
def test_a_custom_role_that_the_template_renders_passes(name: str) -> None:
    assert "Be brief." in render(name, USER, message("martian"), USER)


@pytest.mark.parametrize(
    ("name", "role", "reason"),
    [
        ("mistral", "martian", "Only user, assistant and tool roles"),
        ("gemma2", "system", "System role not supported"),
        ("gemma2", "developer", "System role not supported"),
        ("gemma3", "martian", "roles must alternate"),
    ],
)
def test_a_template_that_refuses_a_role_says_so_itself(name: str, role: str, reason: str) -> None:
    with pytest.raises(TandemError, match=reason) as caught:
        render(name, message(role), USER)
    assert caught.value.param == "messages"


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name not in ("gemma2", "gemma3")])
def test_the_roles_of_a_tool_call_pass(name: str) -> None:
    """A strict template raises unless the message follows a call."""
    calling = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "call00001", "content": "seven"}
    assert "seven" in render(name, USER, calling, result)


@pytest.mark.parametrize("name", TEMPLATES)
def test_users_and_assistants_pass(name: str) -> None:
    text = render(name, USER, ANSWER, message("user", "And now?"))
    assert all(content in text for content in ("Hi.", "Hello.", "And now?"))


def test_a_message_without_text_has_nothing_to_lose() -> None:
    assert render("qwen3", message("martian", ""), USER) == render("qwen3", USER)


def test_a_message_is_not_changed() -> None:
    developer = message("developer")
    render("qwen3", developer, USER)
    assert developer == message("developer")


WITH_KWARGS = (
    "{% for m in messages %}{% if m.role != 'critic' or allow_critic %}{{ m.role }}:{{ m.content }};{% endif %}"
    "{% endfor %}"
)
WITHOUT_TOOLS = "{% for m in messages %}{% if m.role != 'critic' or not tools %}{{ m.content }};{% endif %}{% endfor %}"
DOCUMENTS = "{% for m in messages %}{% if m.role != 'critic' or documents %}{{ m.content }};{% endif %}{% endfor %}"
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {}}}


@pytest.mark.parametrize(
    ("source", "tools", "kwargs", "is_rendered"),
    [
        (WITH_KWARGS, None, {}, False),
        (WITH_KWARGS, None, {"allow_critic": True}, True),
        (WITHOUT_TOOLS, None, {}, True),
        (WITHOUT_TOOLS, [WEATHER], {}, False),
        (DOCUMENTS, None, {}, False),
        (DOCUMENTS, None, {"documents": [{"text": "one"}]}, True),
    ],
)
def test_a_role_is_probed_with_the_requests_variables(
    source: str, tools: list[Any] | None, kwargs: dict[str, Any], is_rendered: bool
) -> None:
    """Also after requests with other variables, with their results cached."""
    template = ChatTemplate(source, {})

    def rendered(tools: list[Any] | None, kwargs: dict[str, Any]) -> str:
        messages = [USER, message("critic")]
        return template.render(messages, tools, kwargs, add_generation_prompt=True, continue_final_message=False)

    for other_tools, other_kwargs in ((None, {}), ([WEATHER], {}), (None, {"allow_critic": True, "documents": [1]})):
        with contextlib.suppress(TandemError):
            rendered(other_tools, other_kwargs)
    if is_rendered:
        assert "Be brief." in rendered(tools, kwargs)
    else:
        with pytest.raises(TandemError, match="renders no message of role 'critic'"):
            rendered(tools, kwargs)


def test_tools_that_a_template_cannot_read_leave_no_trace() -> None:
    template = ChatTemplate("{% for t in tools %}{{ t.function.name + '' }}{% endfor %}" + WITH_KWARGS, {})

    def rendered(tools: list[Any]) -> str:
        messages = [message("developer"), USER]
        return template.render(messages, tools, {}, add_generation_prompt=True, continue_final_message=False)

    with pytest.raises(TandemError, match="refuses these messages"):
        rendered([{"function": {"name": 5}}])
    assert "developer:Be brief." in rendered([WEATHER])


def test_each_role_and_place_is_probed_once_for_the_same_variables_and_few_are_kept() -> None:
    calls = []

    def shown(messages: list[dict[str, Any]], variables: Any) -> str:
        calls.append(variables)
        return str([one["content"] for one in messages])

    results = ProbeCache()
    roles = TemplateRoles(shown, results)

    def fitted(messages: list[Message], kwargs: dict[str, int], has_tools: bool = False) -> None:
        assert roles.fitted(enumerate(messages), probe_variables(kwargs, has_tools))

    for _ in range(3):
        fitted([USER, ANSWER, USER, message("developer")], {"a": 1, "b": 2})
        fitted([USER, ANSWER, USER, message("developer")], {"b": 2, "a": 1})
    assert len(calls) == 4, "a user's first, and the later message of each role"
    fitted([USER], {"a": 1, "b": 2}, True)
    fitted([USER], {"a": 1, "b": 3})
    assert len(calls) == 6
    for index in range(2 * CACHED_RESULTS):
        fitted([USER], {"index": index})
    assert len(results) == CACHED_RESULTS
