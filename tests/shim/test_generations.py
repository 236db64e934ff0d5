"""What all APIs share: facts, served names, the start of a generation with its telemetry, the end of all of them."""

import pytest

from services.rpc.errors import TandemError, invalid, unavailable
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from tests.shim.harness import LIMITS, Shim
from tests.telemetry.fake_tracing import FakeTracing

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


def submit(num_choices: int = 1) -> text_pb2.TextSubmit:
    return text_pb2.TextSubmit(choices=[pb.Choice(handle=index + 1, choice=index) for index in range(num_choices)])


async def test_nothing_is_known_before_a_tokenizer_connects() -> None:
    generations = Shim().generations
    for ask in (generations.facts, lambda: generations.served_name("fake")):
        with pytest.raises(TandemError, match="the model is still being loaded") as caught:
            ask()
        assert caught.value.code == "UNAVAILABLE"


async def test_served_names() -> None:
    generations = Shim(connected=True).generations
    assert [generations.served_name(name) for name in (None, "", "fake")] == ["fake"] * 3
    with pytest.raises(TandemError, match="the model 'other' is not served; served models: fake") as caught:
        generations.served_name("other")
    assert (caught.value.code, caught.value.param, caught.value.reason) == ("NOT_FOUND", "model", "model_not_found")


async def test_a_generation_is_open_until_its_close() -> None:
    tracing = FakeTracing()
    shim = Shim(connected=True, tracing=tracing)
    generation = shim.generations.start("chat", "id", "fake", PARENT, [submit()])
    assert shim.generations.open == {generation}
    (span,) = tracing.spans
    assert (span.name, span.parent) == ("chat fake", PARENT)
    sent = (await shim.sent()).submit
    assert (sent.traceparent, sent.request_id) == (span.traceparent, "id")
    generation.close()
    assert not shim.generations.open and span.ended


async def test_choices_get_handles_of_their_own() -> None:
    shim = Shim(connected=True)
    for _ in range(2):
        shim.generations.start("chat", "id", "fake", "", [submit(3), submit(2)])
    sent = [(await shim.sent()).submit for _ in range(4)]
    handles = [choice.handle for one in sent for choice in one.choices]
    assert len(set(handles)) == len(handles) == 10 and 0 not in handles


async def test_too_many_choices_are_refused_before_anything_starts() -> None:
    tracing = FakeTracing()
    shim = Shim(connected=True, tracing=tracing)
    with pytest.raises(TandemError, match="max_num_queued_reqs is 640"):
        shim.generations.start("chat", "id", "fake", "", [submit(LIMITS.max_num_queued_reqs + 1)])
    assert not tracing.spans and not shim.generations.open


async def test_a_refusal_is_a_span() -> None:
    tracing = FakeTracing()
    generations = Shim(connected=True, tracing=tracing).generations
    with pytest.raises(TandemError), generations.trace_refusals("chat", PARENT):
        raise invalid("wrong")
    (span,) = tracing.spans
    assert (span.name, span.parent, span.attributes["error.type"]) == ("chat", PARENT, "INVALID_ARGUMENT")
    assert [error for _, error in span.ended] == ["INVALID_ARGUMENT"]
    with generations.trace_refusals("chat", PARENT):
        pass
    assert len(tracing.spans) == 1


async def test_all_generations_fail_and_close_together() -> None:
    shim = Shim(connected=True)
    generations = [shim.generations.start("chat", "id", "fake", "", [submit(1 + index)]) for index in range(2)]
    shim.generations.fail_all(unavailable("the server is stopping"))
    for generation in generations:
        for update in await generation.take():
            assert update.terminal is not None and update.terminal.error.message == "the server is stopping"
    shim.generations.close_all()
    assert not shim.generations.open
