"""/v1/chat/completions/batch: one submit and one choice for each conversation."""

import asyncio
from typing import Any

import httpx
import pytest

from services.rpc.errors import too_long
from services.shim.apis.chat_batch import submit as batch_submit
from services.shim.apis.chat_batch.schema import MAX_CONVERSATIONS
from tests.shim.harness import Shim, error_of

PATH = "/v1/chat/completions/batch"
HI = {"role": "user", "content": "Hi"}


async def test_each_conversation_has_its_choice(shim: Shim, http: httpx.AsyncClient) -> None:
    content = b'{"messages": [[{"role": "user", "content":  "a"}], [{"role":"user","content":"b","x":1}]], "seed": 5}'
    answer = asyncio.create_task(http.post(PATH, content=content))
    submits = [(await shim.sent()).submit for _ in range(2)]
    assert [submit.chat.messages_json for submit in submits] == [
        b'[{"role": "user", "content":  "a"}]', b'[{"role":"user","content":"b","x":1}]'
    ]  # fmt: skip
    assert all(submit.seed == 5 and submit.chat.add_generation_prompt for submit in submits)
    for number, submit in reversed(list(enumerate(submits))):
        (choice,) = submit.choices
        shim.accept(choice.handle, [1, 2])
        shim.event(choice.handle, 0, [7], f"answer {number}")
        shim.end(choice.handle, prompt_tokens=2 + number, output_tokens=1)
    found = (await answer).json()
    assert found["object"] == "chat.completion" and found["id"].startswith("chatcmpl-")
    assert [choice["index"] for choice in found["choices"]] == [0, 1]
    assert [choice["message"]["content"] for choice in found["choices"]] == ["answer 0", "answer 1"]
    assert (found["usage"]["prompt_tokens"], found["usage"]["completion_tokens"]) == (5, 2)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [[]]}, "messages.0"),
        ({"messages": [HI]}, "messages.0"),
        ({"messages": [[HI], [{"role": "user"}]]}, "messages.1.0.content"),
        ({"messages": [[HI]] * (MAX_CONVERSATIONS + 1)}, "messages"),
        ({"messages": [[HI]], "stream": True}, "stream"),
        ({"messages": [[HI]], "n": 2}, "n"),
        ({"messages": [[HI]], "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"messages": [[HI]], "functions": [{"name": "f"}]}, "functions"),
        ({"messages": [[HI]], "tool_choice": "required"}, "tool_choice"),
        ({"messages": [[HI]], "use_beam_search": True}, "use_beam_search"),
        ({"messages": [[HI]], "add_generation_prompt": False}, "add_generation_prompt"),
        ({"messages": [[HI]], "other": 1}, "other"),
        ({"messages": [[HI]], "echo": True}, "echo"),
        ({"messages": [[HI]], "prompt_logprobs": 1}, "prompt_logprobs"),
    ],
)
async def test_what_it_lacks_is_refused_by_name(http: httpx.AsyncClient, body: dict[str, Any], param: str) -> None:
    assert error_of(await http.post(PATH, json=body), 400)["param"] == param


async def test_fields_that_each_submit_has_are_bounded(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_submit, "MAX_COPIED_BYTES", 5000)
    body = {"messages": [[HI]] * 10, "stop": ["x" * 1000]}
    assert (
        "for 10 conversations, but at most 5000 are allowed"
        in error_of(await http.post(PATH, json=body), 400)["message"]
    )


async def test_a_failed_conversation_fails_the_request(shim: Shim, http: httpx.AsyncClient) -> None:
    answer = asyncio.create_task(http.post(PATH, json={"messages": [[HI], [HI]]}))
    handles = [(await shim.sent()).submit.choices[0].handle for _ in range(2)]
    shim.fail(handles[1], too_long(99, 64))
    assert error_of(await answer, 400)["param"] == "messages"
    assert not shim.open_generations
