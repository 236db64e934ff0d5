"""The shim's links to the tokenizers: what they are asked, and how long calls are being resumed after a loss."""

import asyncio
import hashlib
import io
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.rpc.hello import make_hello
from services.shim.tokenizer_client import TokenizerClient
from tests.rpc.pipeline import Pipeline
from tests.shim.harness import FACTS, Shim

NOWHERE = "unix:/none"


@pytest.fixture
async def client(socket_dir: Path) -> AsyncIterator[TokenizerClient]:
    """A client with two addresses, the first of a tokenizer that is not there."""
    async with Pipeline(socket_dir).running() as pipeline:
        made = TokenizerClient((NOWHERE, pipeline.tokenizer_address), make_hello("shim"))
        tasks = [asyncio.create_task(link.run()) for link in made.links]
        await asyncio.wait_for(asyncio.shield(made.dispatcher.first_link), 10)
        yield made
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_one_tokenizer_tells_of_the_model_and_the_engines(client: TokenizerClient) -> None:
    info = await client.model_info()
    assert (info.model_type, list(info.facts.served_model_names)) == ("qwen3", ["fake"])
    (stats,) = await client.engine_stats()
    assert stats.num_blocks == 512


async def test_the_tokenizers_files_come_in_pieces(client: TokenizerClient) -> None:
    pieces = [piece async for piece in client.tokenizer_pieces()]
    archive = b"".join(piece.data for piece in pieces)
    assert hashlib.sha256(archive).hexdigest() == pieces[-1].sha256
    assert "tokenizer.json" in zipfile.ZipFile(io.BytesIO(archive)).namelist()


async def test_an_administrative_call_needs_every_tokenizer(client: TokenizerClient) -> None:
    with pytest.raises(TandemError, match="not every tokenizer could be reached"):
        await client.reset_prefix_cache()


async def test_without_a_tokenizer_all_calls_fail() -> None:
    client = TokenizerClient((NOWHERE,), make_hello("shim"))
    for call in (client.model_info(), client.engine_stats(), anext(client.tokenizer_pieces())):
        with pytest.raises(TandemError, match="no process that could answer is connected") as caught:
            await call
        assert caught.value.code == "UNAVAILABLE"


async def test_a_call_waits_through_an_outage() -> None:
    shim = Shim(connected=True, resume_wait=0.5)
    shim.client.link_down(shim.link, died=True)
    waiting = asyncio.create_task(shim.client.model_info())
    await asyncio.sleep(0)
    assert not waiting.done()
    with pytest.raises(TandemError, match="no process that could answer has been connected for"):
        await waiting


async def test_a_question_to_a_tokenizer_that_dies_is_asked_again() -> None:
    shim = Shim(connected=True, resume_wait=10)
    asked = 0

    async def call_unary(rpc: object) -> str:
        nonlocal asked
        asked += 1
        if asked < 3:
            shim.link.peer = None
            shim.client.link_down(shim.link, died=True)
            asyncio.get_running_loop().call_later(0.2, connect)
            raise TandemError("UNAVAILABLE", "the connection was reset")
        return "answer"

    def connect() -> None:
        shim.link.peer = pb.Hello(epoch=6 + asked, engine=FACTS)
        shim.client.link_up(shim.link)

    shim.link.call_unary = call_unary  # type: ignore[attr-defined]
    shim.client.links.append(shim.link)  # type: ignore[arg-type]
    assert await shim.client.ask_one(lambda stub: stub) == "answer"
    assert asked == 3


async def test_a_tokenizer_that_dies_amid_its_files_is_replaced_by_the_next_one() -> None:
    shim = Shim(connected=True, resume_wait=10)
    asked = 0

    def connect() -> None:
        shim.link.peer = pb.Hello(epoch=6 + asked, engine=FACTS)
        shim.client.link_up(shim.link)

    async def call_stream(rpc: object) -> AsyncIterator[int]:
        nonlocal asked
        asked += 1
        for piece in range(4):
            if piece == asked:
                shim.link.peer = None
                shim.client.link_down(shim.link, died=True)
                asyncio.get_running_loop().call_later(0.2, connect)
                raise TandemError("UNAVAILABLE", "the connection was reset")
            yield piece

    shim.link.call_stream = call_stream  # type: ignore[attr-defined]
    shim.client.links.append(shim.link)  # type: ignore[arg-type]
    assert [piece async for piece in shim.client.tokenizer_pieces()] == [0, 1, 2, 3]
    assert asked == 4


async def test_a_question_that_fails_at_a_tokenizer_that_lives_is_not_repeated() -> None:
    shim = Shim(connected=True)
    asked = 0

    async def call_unary(rpc: object) -> str:
        nonlocal asked
        asked += 1
        raise TandemError("UNAVAILABLE", "it failed")

    shim.link.call_unary = call_unary  # type: ignore[attr-defined]
    shim.client.links.append(shim.link)  # type: ignore[arg-type]
    with pytest.raises(TandemError):
        await shim.client.ask_one(lambda stub: stub)
    assert asked == 1
