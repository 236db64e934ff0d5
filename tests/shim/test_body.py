"""Bodies: what is no JSON or no object, values beyond every type, nesting, and fields as they were written."""

import asyncio
from typing import Any

import pytest

from services.rpc.errors import TandemError
from services.shim.body import Body
from tests.shim.harness import Shim, error_of


def refused(text: bytes) -> str:
    with pytest.raises(TandemError) as caught:
        Body(text)
    assert caught.value.code == "INVALID_ARGUMENT"
    return caught.value.message


NO_JSON = [
    b"", b" ", b"{", b"nothing", b'{"a": NaN}', b'{"a": Infinity}', b'{"a": 1e999}', b'{"a": [-1e999]}', b'{"a": 01}',
    b'{"a": "\xff"}', b'{"\xff": 1}', b'{"a": {"\xff": 1}}', b'{"a": "\\ud800"}', b'{"\\udfff": 1}',
    b'{"a": ["\\ud800\\u0061"]}', b'{"a": "\xed\xa0\x80"}', b'{"a": "\x00"}', b'{"a": "\n"}', b'{"a": 1,}', b"{'a': 1}",
    b'{"a": 1} {}', b'{"a": 1}x', b'{"a":' * 10**5, b'{"a":' + b"[" * 10**5, b"\xef\xbb\xbf{}",
    '{"a": 1}'.encode("utf-16"),
]  # fmt: skip


@pytest.mark.parametrize("text", NO_JSON, ids=[repr(text[:20]) for text in NO_JSON])
def test_what_is_no_json(text: bytes) -> None:
    assert refused(text).startswith("the request body is not JSON")


@pytest.mark.parametrize("text", [b"[]", b'"text"', b"5", b"null", b"true"])
def test_what_is_no_object(text: bytes) -> None:
    assert refused(text) == "the request body is not a JSON object"


async def test_refusals_over_http() -> None:
    async with Shim().http() as http:
        error = error_of(await http.post("/v1/completions", content=b'{"prompt": "\\ud800"}'), 400)
        assert error["message"].startswith("the request body is not JSON")
        error = error_of(await http.post("/v1/completions", content=b"[]"), 400)
        assert error["message"] == "the request body is not a JSON object"


def test_null_is_absent_and_the_last_of_equal_names_counts() -> None:
    body = Body(b'{"a": null, "b": 1, "b": 2, "c": 3, "c": null, "\\u0064": 4}')
    assert body.fields == {"b": 2, "d": 4}
    assert body.json("b") == b"2"


@pytest.mark.parametrize(
    "value", ['"\\u0061\\/\\ud83d\\ude00é"', "1.50e+1", "[ 1 ,\n2 ]", '{"b": 1, "a": 1, "b": 2}', '""', "-0", "false"]
)
def test_a_field_as_it_was_written(value: str) -> None:
    body = Body(f'{{ "x" : 1, "field" :  {value} \n, "y": 2}}'.encode())
    assert body.json("field") == value.encode()


def test_a_field_that_is_absent() -> None:
    with pytest.raises(KeyError):
        Body(b"{}").json("a")


def test_texts_are_decoded() -> None:
    assert Body(b'{"a": "\\ud83d\\ude00\\u0000"}').fields == {"a": "\U0001f600\0"}


@pytest.mark.parametrize("depth", [100, 400, 800, 1000, 5000])
@pytest.mark.parametrize("field", ["messages", "chat_template_kwargs", "metadata", "tools", "unknown"])
async def test_deeply_nested_json_is_no_bug(depth: int, field: str) -> None:
    nested = b"[" * depth + b"]" * depth
    fields: dict[str, bytes] = {
        "messages": b'[{"role": "user", "content": "Hi", "extra": ' + nested + b"}]",
        "chat_template_kwargs": b'{"a": ' + nested + b"}",
        "metadata": b'{"a": ' + nested + b"}",
        "tools": b'[{"type": "function", "function": {"a": ' + nested + b"}}]",
        "unknown": nested,
    }
    written = {"messages": b'[{"role": "user", "content": "Hi"}]', field: fields[field]}
    body = b"{" + b", ".join(b'"' + name.encode() + b'": ' + value for name, value in written.items()) + b"}"
    shim = Shim(connected=True)
    async with shim.http() as http:
        answer: asyncio.Task[Any] = asyncio.create_task(http.post("/v1/chat/completions", content=body))
        sent = asyncio.create_task(shim.sent())
        await asyncio.wait({answer, sent}, return_when=asyncio.FIRST_COMPLETED)
        if sent.done():
            shim.fail(sent.result().submit.choices[0].handle, TandemError("INVALID_ARGUMENT", "submitted"))
        sent.cancel()
        message = error_of(await answer, 400)["message"]
    if depth == 100:
        assert message == ("submitted" if field != "unknown" else "unsupported parameter: unknown")
    if depth == 5000:
        assert message.startswith("the request body is not JSON")
