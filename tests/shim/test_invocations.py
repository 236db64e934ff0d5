"""/invocations: a body with messages is a chat, one with a prompt a completion; answers and streams are theirs."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from services.rpc.errors import too_long
from tests.shim.calls import BODIES, CHAT, TEXT, both
from tests.shim.harness import Shim, error_of

PATH = "/invocations"


async def answered(shim: Shim, http: httpx.AsyncClient, path: str, **body: Any) -> tuple[str, str]:
    """Returns the content type and the text of an answer, without id and time."""
    answer = asyncio.create_task(http.post(path, json=body))
    (choice,) = (await shim.sent()).submit.choices
    shim.accept(choice.handle, [1, 2])
    shim.event(choice.handle, 0, [7], "Hello")
    shim.end(choice.handle, prompt_tokens=2, output_tokens=1)
    response = await answer
    assert response.status_code == 200
    found = response.text
    first = json.loads(found.partition("\n")[0].removeprefix("data: "))
    for name in ("id", "created"):
        found = found.replace(f'"{name}":{json.dumps(first[name])}', "")
    return response.headers["content-type"], found


@both
@pytest.mark.parametrize("stream", [False, True])
async def test_the_answer_is_that_of_the_api(shim: Shim, http: httpx.AsyncClient, path: str, stream: bool) -> None:
    body = BODIES[path] | {"stream": stream, "request_id": "mine"}
    assert await answered(shim, http, PATH, **body) == await answered(shim, http, path, **body)


@both
async def test_a_large_body_too(shim: Shim, http: httpx.AsyncClient, path: str) -> None:
    """It is read in a child process, which picks the API."""
    text = "x" * 100_000
    body: dict[str, Any] = {"prompt": text} if path == TEXT else {"messages": [{"role": "user", "content": text}]}
    try:
        assert await answered(shim, http, PATH, **body) == await answered(shim, http, path, **body)
    finally:
        await shim.preparer.close()


@pytest.mark.parametrize(
    ("body", "said", "param"),
    [
        ({}, "missing parameter: messages or prompt", "messages"),
        ({"input": "a"}, "missing parameter: messages or prompt", "messages"),
        (BODIES[CHAT] | BODIES[TEXT], "unsupported parameter: prompt", "prompt"),
        (BODIES[CHAT] | {"temperature": 3}, "temperature: Input should be", "temperature"),
        ({"prompt": 5}, "prompt: Input should be", "prompt"),
    ],
)
async def test_errors_are_those_of_the_api(http: httpx.AsyncClient, body: Any, said: str, param: str) -> None:
    error = error_of(await http.post(PATH, json=body), 400)
    assert error["message"].startswith(said) and error["param"] == param


async def test_an_error_of_a_chat_names_its_field(shim: Shim, http: httpx.AsyncClient) -> None:
    for path, param in ((CHAT, "messages"), (TEXT, "prompt")):
        answer = asyncio.create_task(http.post(PATH, json=BODIES[path]))
        shim.fail((await shim.sent()).submit.choices[0].handle, too_long(99, 64))
        assert error_of(await answer, 400)["param"] == param
