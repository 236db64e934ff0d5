"""What the shim asks the tokenizers for beside generating: results, their memory, links that fail."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.rpc.columns import pack_u32, unpack_u32
from services.rpc.errors import TandemError, unavailable
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.rpc.suspect_retries import SUSPECT_AT
from services.shim import in_progress, text_tools
from services.shim.bulk import MIN_BULK_BYTES, NO_BULK, split
from services.shim.in_progress import no_hold
from services.shim.text_tools import LARGE_BYTES, MAX_CALLS, MAX_LARGE_CALLS, Encoded, TextTools
from services.shim.tokenizer_client import LOSS_SECONDS
from tests.rpc.pipeline import Pipeline
from tests.shim.harness import Shim
from tests.shim.tool_link import VOCABULARY, ToolLink, with_tools


def tools_of(*links: ToolLink) -> TextTools:
    client: Any = with_tools(*links).client
    for link in links:
        client.link_up(link)
    return TextTools(client)


def text(content: str) -> text_pb2.TextSubmit:
    return text_pb2.TextSubmit(text=text_pb2.TextInput(text=content))


def strs_of(parts: list[bytes]) -> list[str]:
    found: list[str] = msgspec.json.decode(b"[" + b",".join(parts) + b"]")
    return found


async def test_a_prompt_in_several_pieces() -> None:
    content = 'Hello "é" ' * 9000
    expected = VOCABULARY.encode(content, add_special_tokens=False)
    found = await tools_of(ToolLink()).encode(text(content), NO_BULK, no_hold, any_length=True, token_strs=True)
    assert (unpack_u32(found.token_ids), found.num_tokens) == (expected, len(expected))
    assert len(found.token_strs) > 1
    assert strs_of(found.token_strs) == [VOCABULARY.tokenizer.id_to_token(one) for one in expected]


async def test_large_fields_are_sent_as_they_are() -> None:
    submit = text("Hello " * MIN_BULK_BYTES)
    bulk = split(submit)
    assert bulk is not NO_BULK and not submit.text.text
    found = await tools_of(ToolLink()).encode(submit, bulk, no_hold, any_length=True)
    assert found.num_tokens > MIN_BULK_BYTES and found.token_strs == []


async def test_text_in_several_parts() -> None:
    content = 'Hello "é"\n' * 9000
    column = pack_u32(VOCABULARY.encode(content, add_special_tokens=False))
    parts = await tools_of(ToolLink()).decode(column, no_hold)
    assert len(parts) > 1 and msgspec.json.decode(b'"' + b"".join(parts) + b'"') == content


async def test_a_refusal_keeps_its_fields_and_is_not_tried_again() -> None:
    links = [ToolLink(max_model_len=8), ToolLink(max_model_len=8)]
    with pytest.raises(TandemError) as caught:
        await tools_of(*links).encode(text("Hello " * 50), NO_BULK, no_hold)
    assert (caught.value.code, caught.value.param) == ("INVALID_ARGUMENT", "prompt")
    assert caught.value.reason == "context_length_exceeded"
    assert sum(link.calls for link in links) == 1


async def test_an_answer_that_the_tokenizer_is_unavailable_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """E.g. the system has no process for the chat. Made again and alone, the call would hold up others."""

    async def refused(request: Any, **options: float) -> Any:
        yield text_pb2.EncodedPiece(error=unavailable("no process for it").to_proto())

    links = [ToolLink(), ToolLink()]
    for link in links:
        monkeypatch.setattr(link, "Encode", refused)
    with pytest.raises(TandemError, match="no process for it") as caught:
        await tools_of(*links).encode(text("a"), NO_BULK, no_hold)
    assert caught.value.code == "UNAVAILABLE"
    assert (sum(link.calls for link in links), sum(link.start_locks for link in links)) == (1, 0)


@pytest.mark.parametrize("pieces", [0, 1])
async def test_a_call_that_is_cut_off_is_made_again_and_at_last_alone(
    pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the dead one has sent is dropped, and does not count as held."""
    content = "Hello " * 9000
    held = 0

    def hold(size: int) -> None:
        nonlocal held
        held += size

    links = [ToolLink(dies_after=pieces), ToolLink()]
    found = await tools_of(*links).encode(text(content), NO_BULK, hold, any_length=True)
    assert unpack_u32(found.token_ids) == VOCABULARY.encode(content, add_special_tokens=False)
    assert held == len(found.token_ids) and [link.calls for link in links] == [1, 1]
    deadly = [ToolLink(dies_after=pieces) for _ in range(4)]
    deadly[2].broken_locks = 1
    with pytest.raises(TandemError) as caught:
        await tools_of(*deadly).encode(text(content), NO_BULK, hold, any_length=True)
    assert (caught.value.code, str(caught.value)) == ("INTERNAL", "the tokenizer died while it ran this request alone")
    assert sum(link.calls for link in deadly) == SUSPECT_AT + 1
    assert [sum(getattr(link, name) for link in deadly) for name in ("start_locks", "broken_locks")] == [2, 1]


@pytest.mark.parametrize(("dies", "code"), [(True, "INTERNAL"), (False, "UNAVAILABLE")])
async def test_the_next_epoch_shows_whether_a_call_that_ran_alone_killed(dies: bool, code: str) -> None:
    shim, link = Shim(), ToolLink()
    client: Any = shim.client

    def connect(epoch: int) -> None:
        link.peer = pb.Hello(epoch=epoch)
        client.link_up(link)

    async def call_stream(rpc: Any) -> Any:
        link.calls += 1
        link.peer = None
        client.link_down(link, died=True)
        asyncio.get_running_loop().call_later(2 * LOSS_SECONDS, connect, link.calls if dies else 0)
        raise unavailable("it could not be reached")
        yield

    link.call_stream = call_stream  # type: ignore[method-assign]
    client.links.append(link)
    connect(0)
    with pytest.raises(TandemError) as caught:
        await TextTools(client).encode(text("a"), NO_BULK, no_hold)
    assert (caught.value.code, link.calls) == (code, SUSPECT_AT + 1)


async def test_the_death_of_a_tokenizer_is_one_loss_of_a_call() -> None:
    """A call fails before the link has told that its peer is gone; a second attempt would be lost to the same death."""
    shim, link, loop = Shim(), ToolLink(), asyncio.get_running_loop()
    client: Any = shim.client
    answer = link.call_stream

    def tell() -> None:
        link.peer = None
        client.link_down(link, died=True)
        loop.call_later(2 * LOSS_SECONDS, connect, 1)

    def connect(epoch: int) -> None:
        link.peer = pb.Hello(epoch=epoch)
        client.link_up(link)

    async def call_stream(rpc: Any) -> Any:
        if link.peer is not None and link.peer.epoch == 1:
            async for piece in answer(rpc):
                yield piece
            return
        link.calls += 1
        loop.call_later(LOSS_SECONDS / 4, tell)
        raise unavailable("it could not be reached")

    link.call_stream = call_stream  # type: ignore[method-assign]
    client.links.append(link)
    connect(0)
    assert (await TextTools(client).encode(text("a"), NO_BULK, no_hold)).num_tokens
    assert (link.calls, link.start_locks) == (2, 0)


async def test_a_call_that_takes_too_long_is_not_made_again(
    socket_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(text_tools, "SECONDS", -1.0)  # its deadline has passed
    async with Pipeline(socket_dir).running() as pipeline, pipeline.http() as http:
        answer = await http.post("/detokenize", json={"tokens": [5]})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert answer.json()["error"]["message"] == "the tokenizer did not answer in time; try again"
    assert caplog.text.count("failed: DEADLINE_EXCEEDED") == 1


async def test_the_links_take_turns() -> None:
    links = [ToolLink() for _ in range(3)]
    tools = tools_of(*links)
    links[1].peer = None
    for _ in range(6):
        await tools.encode(text("a"), NO_BULK, no_hold)
    assert links[1].calls == 0 and min(links[0].calls, links[2].calls) >= 2


async def test_a_tokenizer_that_is_not_ready_gets_no_call_while_another_is() -> None:
    """It drains, so its end would wait for each call."""
    links = [ToolLink() for _ in range(2)]
    tools = tools_of(*links)
    links[0].is_ready = False
    for _ in range(4):
        await tools.encode(text("a"), NO_BULK, no_hold)
    assert [link.calls for link in links] == [0, 4]
    links[1].is_ready = False
    for _ in range(4):
        await tools.encode(text("a"), NO_BULK, no_hold)
    assert [link.calls for link in links] == [2, 6]


async def test_a_call_waits_through_a_restart() -> None:
    shim = with_tools(link := ToolLink(), resume_wait=0.5)
    tools, link.peer = TextTools(shim.client), None
    shim.client.link_down(shim.link, died=True)
    waiting = asyncio.create_task(tools.encode(text("a"), NO_BULK, no_hold))
    await asyncio.sleep(0)
    assert not waiting.done() and not link.calls
    link.peer = pb.Hello()
    shim.client.link_up(shim.link)
    assert (await waiting).num_tokens == 1
    shim.client.link_down(shim.link, died=True)
    for call in (tools.encode(text("a"), NO_BULK, no_hold), tools.decode(b"", no_hold), tools.tokenizer_config()):
        with pytest.raises(TandemError, match="no process that could answer has been connected for"):
            await call


def held_back(link: ToolLink) -> asyncio.Event:
    """Keeps the calls of a link from being answered until the event is set; counts them."""
    opened = asyncio.Event()

    async def call_stream(rpc: Any) -> Any:
        link.calls += 1
        await opened.wait()
        async for piece in rpc(link):
            yield piece

    link.call_stream = call_stream  # type: ignore[method-assign]
    return opened


async def test_calls_wait_for_a_place() -> None:
    """One that is cancelled while it waits makes no call."""
    link = ToolLink()
    opened, tools = held_back(link), tools_of(link)
    tasks = [asyncio.create_task(tools.encode(text("a"), NO_BULK, no_hold)) for _ in range(MAX_CALLS + 5)]
    await asyncio.sleep(0)
    assert link.calls == MAX_CALLS
    tasks[-1].cancel()
    opened.set()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [one.num_tokens for one in found if isinstance(one, Encoded)] == [1] * (MAX_CALLS + 4)
    assert link.calls == MAX_CALLS + 4


async def test_large_calls_have_places_of_their_own() -> None:
    """A tokenizer takes a multiple of a large call's size; small calls do not wait for them."""
    link = ToolLink()
    opened, tools = held_back(link), tools_of(link)
    columns = [pack_u32([1] * (LARGE_BYTES // 4))] * (MAX_LARGE_CALLS + 3)
    large = [asyncio.create_task(tools.decode(column, no_hold)) for column in columns]
    await asyncio.sleep(0)
    assert link.calls == MAX_LARGE_CALLS
    small = asyncio.create_task(tools.decode(pack_u32([1]), no_hold))
    await asyncio.sleep(0)
    assert link.calls == MAX_LARGE_CALLS + 1
    opened.set()
    await asyncio.gather(small, *large)
    assert link.calls == len(columns) + 1


async def test_results_count_as_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_progress, "MAX_HELD_BYTES", 40_000)
    monkeypatch.setattr(in_progress, "SMALL_BYTES", 0)
    shim, tools = Shim(), tools_of(ToolLink())
    with shim.in_progress.request() as hold:
        await tools.encode(text("a"), NO_BULK, hold)
        with pytest.raises(TandemError) as caught:
            await tools.encode(text("Hello " * 20_000), NO_BULK, hold, any_length=True, token_strs=True)
        assert caught.value.code == "RESOURCE_EXHAUSTED"
        column = pack_u32(VOCABULARY.encode("Hello " * 20_000, add_special_tokens=False))
        with pytest.raises(TandemError) as caught:
            await tools.decode(column, hold)
        assert caught.value.code == "RESOURCE_EXHAUSTED"
    assert shim.in_progress.num_bytes == 0
