"""Generation, its calls and their mailbox: merged updates, errors before and after the start, and aborts on close."""

import asyncio

import pytest

from services.rpc.call import StreamBroken
from services.rpc.columns import unpack_u32
from services.rpc.errors import TandemError, invalid, unavailable
from services.rpc.generated import text_pb2
from services.rpc.pieces import text_of
from tests.shim.harness import EPOCH, Shim, row


@pytest.fixture
async def shim() -> Shim:
    return Shim(connected=True)


async def test_updates_of_one_choice_merge_until_they_are_read(shim: Shim) -> None:
    generation, (first, second) = shim.start(2)
    shim.event(first, 0, [7], "a")
    shim.event(second, 0, [8], "x")
    shim.event(first, 1, [9, 10], "bc", logprobs=[text_pb2.TokenLogprobs()] * 2)
    shim.end(first, content="!")
    updates = {update.index: update for update in await generation.take()}
    assert (text_of(updates[0].pieces), unpack_u32(updates[0].token_ids), len(updates[0].logprobs)) == (
        "abc!",
        [7, 9, 10],
        2,
    )
    assert updates[0].terminal is not None
    assert (text_of(updates[1].pieces), unpack_u32(updates[1].token_ids), updates[1].terminal) == ("x", [8], None)
    shim.event(second, 1, [11], "y")
    (update,) = await generation.take()
    assert (update.index, text_of(update.pieces)) == (1, "y"), "only what is new"


async def test_take_waits_for_an_update(shim: Shim) -> None:
    generation, (handle,) = shim.start(1)
    taken = asyncio.create_task(generation.take())
    await asyncio.wait({taken}, timeout=0.01)
    assert not taken.done()
    shim.event(handle, 0, [7], "a")
    assert [text_of(update.pieces) for update in await asyncio.wait_for(taken, 10)] == ["a"]


async def test_indices_count_the_choices_of_all_prompts(shim: Shim) -> None:
    generation, handles = shim.start(2, 1)
    assert generation.num_choices == 3 and len(generation.calls) == 2
    shim.event(handles[2], 0, [7], "third")
    assert [(update.index, text_of(update.pieces)) for update in await generation.take()] == [(2, "third")]


async def test_wait_accepted_returns_once_a_choice_is_accepted(shim: Shim) -> None:
    generation, handles = shim.start(2)
    waiting = asyncio.create_task(generation.wait_accepted())
    await asyncio.wait({waiting}, timeout=0.01)
    assert not waiting.done()
    shim.accept(handles[1], [1, 2, 3])
    await asyncio.wait_for(waiting, 10)
    assert unpack_u32(generation.calls[0].prompt_token_ids) == [1, 2, 3]


async def test_wait_accepted_raises_the_error_of_a_refused_request(shim: Shim) -> None:
    generation, (handle,) = shim.start(1)
    shim.fail(handle, invalid("the prompt is empty", "prompt"))
    with pytest.raises(TandemError, match="the prompt is empty") as caught:
        await asyncio.wait_for(generation.wait_accepted(), 10)
    assert caught.value.param == "prompt"


async def test_a_repeated_event_changes_nothing(shim: Shim) -> None:
    generation, (handle,) = shim.start(1)
    for _ in range(2):
        shim.event(handle, 0, [7, 8], "ab")
    (update,) = await generation.take()
    assert (text_of(update.pieces), unpack_u32(update.token_ids)) == ("ab", [7, 8])


@pytest.mark.parametrize(("start_index", "reason"), [(1, "handle 1: only 1 of"), (3, "expected token 2, received 3")])
async def test_an_event_that_cannot_be_used_breaks_the_stream(shim: Shim, start_index: int, reason: str) -> None:
    _, (handle,) = shim.start(1)
    shim.event(handle, 0, [7, 8], "ab")
    with pytest.raises(StreamBroken, match=reason):
        shim.event(handle, start_index, [8, 9], "bc")


async def test_messages_of_an_earlier_epoch_are_dropped(shim: Shim) -> None:
    generation, (handle,) = shim.start(1)
    old = row(handle, 0, [7], "old")
    old.epoch = EPOCH - 1
    shim.receive(old)
    shim.end(handle)
    assert [text_of(update.pieces) for update in await generation.take()] == [""]


async def test_fail_gives_the_error_to_every_open_choice(shim: Shim) -> None:
    generation, handles = shim.start(2, 1)
    shim.end(handles[1])
    generation.fail(unavailable("the server is stopping"))
    errors = {update.index: update.terminal.error.message for update in await generation.take() if update.terminal}
    assert errors == {0: "the server is stopping", 1: "", 2: "the server is stopping"}


async def test_close_aborts_the_open_choices(shim: Shim) -> None:
    generation, handles = shim.start(3)
    assert shim.open_generations == {generation}
    assert (await shim.sent()).HasField("submit")
    shim.end(handles[1])
    generation.close()
    assert [(await shim.sent()).abort.handle for _ in range(2)] == [handles[0], handles[2]]
    assert not shim.open_generations
    generation.close()
    assert shim.link.entries.empty()


async def test_without_a_tokenizer_nothing_starts() -> None:
    shim = Shim()
    with pytest.raises(TandemError) as caught:
        shim.start(1)
    assert caught.value.code == "UNAVAILABLE" and not shim.open_generations


async def test_a_request_that_is_refused_after_some_of_its_prompts_leaves_no_call() -> None:
    shim = Shim(connected=True)
    shim.link.peer.engine.limits.max_num_queued_reqs = 2
    shim.client.link_down(shim.link, died=True)
    with pytest.raises(TandemError) as caught:
        shim.start(1, 1, 1)
    assert caught.value.code == "RESOURCE_EXHAUSTED" and not shim.open_generations
    shim.client.link_up(shim.link)
    assert shim.link.entries.empty()
