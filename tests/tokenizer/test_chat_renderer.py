"""Which template renders a chat, and with which variables."""

import json
from typing import Any

import pytest

from services.errors import Fatal
from services.rpc.errors import TandemError
from services.rpc.generated import text_pb2
from services.tokenizer.chat_renderer import CACHED_TEMPLATES, RESERVED, ChatRenderer, RendererSettings
from services.tokenizer.template_probe import NotProbedError

OWN = "{{ bos_token }}{{ messages[0].content }}:{{ mood }}:{{ documents }}:{{ tools }}"
THEIRS = "{{ bos_token }}*{{ messages[0].content }}*{{ mood }}"


def chat(**fields: Any) -> text_pb2.ChatInput:
    encoded = {name: json.dumps(value).encode() if name.endswith("_json") else value for name, value in fields.items()}
    messages = json.dumps([{"role": "user", "content": "Hi"}]).encode()
    return text_pb2.ChatInput(**{"messages_json": messages, **encoded})


def renderer(**options: Any) -> ChatRenderer:
    return ChatRenderer(RendererSettings(OWN, {"bos_token": "<s>"}, **options))


def test_documents_tools_and_variables_reach_the_template() -> None:
    text = renderer().render(chat(template_kwargs_json={"mood": "good"}, documents_json=[{"text": "d"}]), b"[1]").text
    assert text == "<s>Hi:good:[{'text': 'd'}]:[1]"
    assert renderer().render(chat(), b"").text == "<s>Hi::None:None"


def test_requests_with_tools_have_a_template_of_their_own() -> None:
    found = renderer(tool_template="{{ messages[0].content }} with {{ tools[0] }}")
    assert found.render(chat(), b"[1]").text == "Hi with 1"
    assert found.render(chat(), b"").text == "<s>Hi::None:None"


def test_the_documents_field_wins_over_a_variable_of_that_name() -> None:
    given = chat(template_kwargs_json={"documents": [1]}, documents_json=[2])
    assert renderer().render(given, b"").text == "<s>Hi::[2]:None"


@pytest.mark.parametrize(
    ("own", "mood"), [({}, "calm"), ({"mood": "good"}, "good"), ({"mood": None}, "calm"), ({"mood": False}, "False")]
)
def test_a_requests_variables_win_over_the_operators(own: dict[str, Any], mood: str) -> None:
    found = renderer(default_kwargs={"mood": "calm"}).render(chat(template_kwargs_json=own), b"").text
    assert found == f"<s>Hi:{mood}:None:None"


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_reserved_variables_are_refused(name: str) -> None:
    with pytest.raises(TandemError, match=f"chat_template_kwargs may not set {name}") as caught:
        renderer().render(chat(template_kwargs_json={name: []}), b"")
    assert caught.value.param == "chat_template_kwargs"
    with pytest.raises(Fatal, match=f"--default-chat-template-kwargs: may not set {name}"):
        renderer(default_kwargs={name: []})


def test_a_requests_template_needs_the_operators_trust() -> None:
    with pytest.raises(TandemError, match="--trust-request-chat-template") as caught:
        renderer().render(chat(chat_template=THEIRS), b"")
    assert (caught.value.code, caught.value.param) == ("INVALID_ARGUMENT", "chat_template")
    trusting = renderer(trust_requests=True, default_kwargs={"mood": "calm"})
    assert trusting.render(chat(chat_template=THEIRS), b"").text == "<s>*Hi*calm"
    assert trusting.render(chat(), b"").text == "<s>Hi:calm:None:None", "the model's template is not replaced"


@pytest.mark.parametrize("wrong", ["{% if %}", "{% for a in b %}" * 30 + "{% endfor %}" * 30])
def test_a_requests_template_that_is_not_valid_is_refused(wrong: str) -> None:
    with pytest.raises(TandemError, match="the chat template is not valid") as caught:
        renderer(trust_requests=True).render(chat(chat_template=wrong), b"")
    assert caught.value.param == "chat_template"


def test_a_requests_template_runs_in_the_sandbox() -> None:
    with pytest.raises(TandemError, match="access to"):
        renderer(trust_requests=True).render(chat(chat_template="{{ ''.__class__.__mro__ }}"), b"")


def test_a_requests_template_drops_no_message_either() -> None:
    with pytest.raises(TandemError, match=r"messages\[0\]: the chat template renders no message of role 'user'"):
        renderer(trust_requests=True).render(chat(chat_template="always the same"), b"")


def test_few_templates_of_requests_are_kept_compiled() -> None:
    trusting = renderer(trust_requests=True)
    for index in range(2 * CACHED_TEMPLATES):
        source = f"{index}{{{{ messages[0].content }}}}"
        assert [trusting.render(chat(chat_template=source), b"").text for _ in range(2)] == [f"{index}Hi"] * 2
    info = trusting._request_template.cache_info()
    assert (info.currsize, info.misses, info.hits) == (CACHED_TEMPLATES, 2 * CACHED_TEMPLATES, 2 * CACHED_TEMPLATES)


def test_a_model_without_a_template_renders_a_requests_one() -> None:
    bare = ChatRenderer(RendererSettings(None, {}, trust_requests=True))
    assert bare.render(chat(chat_template=THEIRS), b"").text == "*Hi*"
    with pytest.raises(TandemError, match="--chat-template"):
        bare.render(chat(), b"")


@pytest.mark.parametrize("wrong", ["{{ messages[0].content + 5 }}", "{{ messages[0].content }}{{ '\\ud800' }}"])
def test_an_error_of_a_requests_template_names_it(wrong: str) -> None:
    with pytest.raises(TandemError, match="refuses these messages|half of a surrogate pair") as caught:
        renderer(trust_requests=True).render(chat(chat_template=wrong), b"")
    assert (caught.value.code, caught.value.param) == ("INVALID_ARGUMENT", "chat_template")


def test_half_of_a_surrogate_pair_in_a_message_is_refused() -> None:
    with pytest.raises(TandemError, match="half of a surrogate pair") as caught:
        renderer().render(chat(messages_json=[{"role": "user", "content": "a\ud800"}]), b"")
    assert (caught.value.code, caught.value.param) == ("INVALID_ARGUMENT", "messages")


@pytest.mark.parametrize(("source", "is_left_out"), [("{{ messages[0].content }}", True), (OWN, False)])
def test_whether_the_models_template_leaves_tools_out_is_known_after_a_request_with_some(
    source: str, is_left_out: bool
) -> None:
    found = ChatRenderer(RendererSettings(source, {}, trust_requests=True))
    found.render(chat(), b"")
    found.render(chat(chat_template=THEIRS), b'[{"function": {"name": "f"}}]')
    assert not found.leaves_tools_out
    assert "Hi" in found.render(chat(), b'[{"function": {"name": "f"}}]').text
    assert found.leaves_tools_out == is_left_out


KINDS: dict[str, tuple[dict[str, Any], bytes]] = {
    "plain": ({}, b""),
    "other variables": ({"template_kwargs_json": {"mood": 10**9}}, b""),
    "tools": ({}, b'[{"items": {"items": {}}}]'),
    "documents": ({"documents_json": [{"text": "d"}]}, b""),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_renderer_that_must_not_probe_renders_only_variables_that_another_one_has_rendered(kind: str) -> None:
    careful = ChatRenderer(RendererSettings(OWN, {}), may_probe=False)
    for fields, tools in KINDS.values():
        with pytest.raises(NotProbedError):
            careful.render(chat(**fields), tools)
    probing = ChatRenderer(RendererSettings(OWN, {}))
    fields, tools = KINDS[kind]
    expected = probing.render(chat(**fields), tools)
    careful.probes.add(probing.probes.used)
    assert careful.render(chat(**fields), tools) == expected
    for other in KINDS.keys() - {kind}:
        with pytest.raises(NotProbedError):
            careful.render(chat(**KINDS[other][0]), KINDS[other][1])
