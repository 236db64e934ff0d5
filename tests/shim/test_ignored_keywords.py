"""The header about ignored keywords: ASCII, bounded, and it can be taken apart again. The metric counts each once."""

import asyncio
from urllib.parse import unquote

import pytest

from services.rpc.generated import text_pb2
from services.shim.ignored_keywords import HEADER, MAX_HEADER, ignored_header
from services.shim.metrics import OTHER_KEYWORD
from tests.shim.calls import BODIES, both, handles_of
from tests.shim.harness import Shim


def parts(keywords: list[str]) -> list[str]:
    value = ignored_header(keywords)[HEADER]
    assert value.isascii() and value.isprintable() and len(value) <= MAX_HEADER
    return [unquote(part) for part in value.split(", ")]


def test_without_keywords_there_is_no_header() -> None:
    assert ignored_header([]) == {}


@pytest.mark.parametrize(
    "keyword",
    ["/properties/a: not", "/properties/a,b: not", "/properties/100%: if", "/properties/\u00e9\r\n\t: if", ": not"],
)
def test_a_keyword_with_its_path(keyword: str) -> None:
    assert parts([keyword, "/items: not"]) == [keyword, "/items: not"]


def test_a_plain_path_is_readable() -> None:
    assert ignored_header(["/properties/a: not", "/$defs/b~1c: uniqueItems"]) == {
        HEADER: "/properties/a: not, /$defs/b~1c: uniqueItems"
    }


@pytest.mark.parametrize("number", [10, 100, 1000, 100_000])
def test_it_is_bounded(number: int) -> None:
    keywords = [f"/properties/{at}: not" for at in range(number)]
    found = parts(keywords)
    if found != keywords:
        *some, last = found
        assert some == keywords[: len(some)] and last == f"and {number - len(some)} more"
        assert len(some) > 50


def test_one_that_is_too_long_is_counted() -> None:
    assert parts(["a" * MAX_HEADER, "/items: not"]) == ["and 2 more"]


KEYWORDS = ["/properties/a: not", "/properties/b: not", "/items: if", "/items: x-\u00e9"]


@both
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("keywords", [[], KEYWORDS])
async def test_a_response_has_the_header_and_the_metric(path: str, stream: bool, keywords: list[str]) -> None:
    shim = Shim(connected=True)
    async with shim.http() as http:
        answer = asyncio.create_task(http.post(path, json=BODIES[path] | {"stream": stream, "n": 2}))
        for handle in await handles_of(shim):
            shim.accept(handle, [1, 2], resolved=text_pb2.ResolvedOutput(ignored_keywords=keywords))
            shim.event(handle, 0, [7], "a")
            shim.end(handle)
        response = await answer
    assert response.status_code == 200
    expected = "/properties/a: not, /properties/b: not, /items: if, /items: x-%C3%A9" if keywords else None
    assert response.headers.get(HEADER) == expected
    counted = {
        keyword: shim.registry.get_sample_value("tandem:ignored_schema_keywords_total", {"keyword": keyword})
        for keyword in ("not", "if", OTHER_KEYWORD, "x-\u00e9")
    }
    assert counted == ({"not": 1, "if": 1, OTHER_KEYWORD: 1, "x-\u00e9": None} if keywords else dict.fromkeys(counted))
