"""The RPCs over a real port, with the test as the tokenizer: answers, statuses, aborts, hang-ups, limits."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
from smg_grpc_proto import vllm_engine_pb2 as vllm
from smg_grpc_proto.generated import common_pb2 as smg
from smg_grpc_proto.generated.vllm_engine_pb2_grpc import VllmEngineStub

from services.rpc.columns import unpack_u32
from services.rpc.errors import unavailable
from services.shim import in_progress
from tests.shim.gateway.harness import gateway as open_gateway
from tests.shim.gateway.harness import generate, refusal
from tests.shim.harness import Shim
from tests.telemetry.fake_tracing import FakeTracing

CODE = grpc.StatusCode


@pytest.fixture
async def shim() -> Shim:
    return Shim(connected=True)


@pytest.fixture
async def gateway(shim: Shim) -> AsyncIterator[grpc.aio.Channel]:
    async with open_gateway(shim) as channel:
        yield channel


async def test_a_whole_answer(shim: Shim, gateway: grpc.aio.Channel) -> None:
    answer = generate(gateway, request_id="an-id", tokenized=vllm.TokenizedInput(input_ids=[3, 4]))
    submit = (await shim.sent()).submit
    assert (submit.request_id, unpack_u32(submit.prompt_token_ids)) == ("an-id", [3, 4])
    shim.event(submit.choices[0].handle, 0, [7, 8], "ab")
    shim.end(submit.choices[0].handle, prompt_tokens=2, output_tokens=2)
    (response,) = await answer
    assert (list(response.complete.output_ids), response.complete.finish_reason) == ([7, 8], "stop")
    assert not shim.open_generations and not shim.in_progress.num_requests


async def test_a_stream(shim: Shim, gateway: grpc.aio.Channel) -> None:
    call = VllmEngineStub(gateway).Generate(vllm.GenerateRequest(text="Hi", stream=True))
    handle = (await shim.sent()).submit.choices[0].handle
    for index, token_id in enumerate((7, 8)):
        shim.event(handle, index, [token_id], "a")
        assert list((await call.read()).chunk.token_ids) == [token_id], "sent at once"
    shim.end(handle, output_tokens=2)
    assert (await call.read()).complete.completion_tokens == 2
    assert await call.read() is grpc.aio.EOF


async def test_a_request_without_an_id_gets_one(shim: Shim, gateway: grpc.aio.Channel) -> None:
    answers = [generate(gateway) for _ in range(2)]
    submits = [(await shim.sent()).submit for _ in range(2)]
    assert submits[0].request_id != submits[1].request_id and all(one.request_id for one in submits)
    for submit in submits:
        shim.end(submit.choices[0].handle)
    await asyncio.gather(*answers)


async def test_a_wrong_field_is_named_in_the_status(gateway: grpc.aio.Channel) -> None:
    error = await refusal(generate(gateway, sampling_params=vllm.SamplingParams(temperature=3)))
    assert error.code() == CODE.INVALID_ARGUMENT and "temperature" in (error.details() or "")
    details = dict(error.trailing_metadata())["grpc-status-details-bin"]
    assert b"BadRequest" in details and b"sampling_params.temperature" in details


async def test_without_a_model() -> None:
    async with open_gateway(Shim()) as channel:
        error = await refusal(generate(channel))
        assert (error.code(), error.details()) == (CODE.RESOURCE_EXHAUSTED, "the model is still being loaded")
        assert (await refusal(VllmEngineStub(channel).GetModelInfo(vllm.GetModelInfoRequest()))).code() == error.code()
        assert not (await VllmEngineStub(channel).HealthCheck(vllm.HealthCheckRequest())).healthy


async def test_a_choice_that_fails_ends_the_call(shim: Shim, gateway: grpc.aio.Channel) -> None:
    answer = generate(gateway, stream=True)
    handle = (await shim.sent()).submit.choices[0].handle
    shim.event(handle, 0, [7], "a")
    shim.fail(handle, unavailable("gone"))
    error = await refusal(answer)
    assert (error.code(), error.details()) == (CODE.RESOURCE_EXHAUSTED, "gone")
    assert not shim.open_generations


async def test_abort_ends_the_calls_of_its_ids(shim: Shim, gateway: grpc.aio.Channel) -> None:
    answers = [generate(gateway, request_id=name, stream=True) for name in ("a", "a", "b")]
    handles = {}
    for _ in answers:
        submit = (await shim.sent()).submit
        handles.setdefault(submit.request_id, []).append(submit.choices[0].handle)
    await VllmEngineStub(gateway).Abort(vllm.AbortRequest(request_ids=["a", "unknown"]))
    aborted = {(await shim.sent()).abort.handle for _ in range(2)}
    assert aborted == set(handles["a"])
    for answer in answers[:2]:
        (response,) = await answer
        assert response.complete.finish_reason == "abort"
    assert not answers[2].done()
    shim.end(handles["b"][0])
    assert (await answers[2])[-1].complete.finish_reason == "stop"


async def test_a_cancelled_call_aborts_its_choices(shim: Shim, gateway: grpc.aio.Channel) -> None:
    call = VllmEngineStub(gateway).Generate(vllm.GenerateRequest(text="Hi", stream=True))
    reading = asyncio.ensure_future(call.read())
    handle = (await shim.sent()).submit.choices[0].handle
    call.cancel()
    assert (await shim.sent()).abort.handle == handle
    await asyncio.gather(reading, return_exceptions=True)


async def test_an_expired_call_aborts_its_choices(shim: Shim, gateway: grpc.aio.Channel) -> None:
    call = VllmEngineStub(gateway).Generate(vllm.GenerateRequest(text="Hi"), timeout=0.2)
    reading = asyncio.ensure_future(call.read())
    handle = (await shim.sent()).submit.choices[0].handle
    assert (await shim.sent()).abort.handle == handle
    assert (await refusal(reading)).code() == CODE.DEADLINE_EXCEEDED


async def test_http_and_gateways_share_the_limit_of_requests() -> None:
    shim = Shim(connected=True, max_concurrent_requests=1)
    async with open_gateway(shim) as channel, shim.http() as http:
        over_http = asyncio.create_task(http.post("/v1/completions", json={"prompt": "a"}))
        handle = (await shim.sent()).submit.choices[0].handle
        error = await refusal(generate(channel))
        assert error.code() == CODE.RESOURCE_EXHAUSTED and "max_concurrent_requests" in (error.details() or "")
        shim.end(handle)
        assert (await over_http).status_code == 200
        answer = generate(channel)
        handle = (await shim.sent()).submit.choices[0].handle
        assert (await http.post("/v1/completions", json={"prompt": "a"})).status_code == 429
        shim.end(handle)
        await answer


async def test_the_size_of_requests_is_bounded(
    gateway: grpc.aio.Channel, shim: Shim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_progress, "MAX_HELD_BYTES", 1000)
    monkeypatch.setattr(in_progress, "SMALL_BYTES", 0)
    error = await refusal(generate(gateway, text="x" * 1000))
    assert error.code() == CODE.RESOURCE_EXHAUSTED and "more than 1000 bytes" in (error.details() or "")
    assert shim.in_progress.num_requests == 0


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("Embed", vllm.EmbedRequest()),
        ("StartProfile", smg.StartProfileRequest()),
        ("StopProfile", smg.StopProfileRequest()),
        ("SubscribeKvEvents", smg.SubscribeKvEventsRequest()),
    ],
)
async def test_what_is_not_there_is_named(gateway: grpc.aio.Channel, name: str, request_: object) -> None:
    call = getattr(VllmEngineStub(gateway), name)(request_)
    error = await refusal(call.read() if name == "SubscribeKvEvents" else call)
    assert (error.code(), error.details()) == (CODE.UNIMPLEMENTED, f"{name} is not supported by this server")


async def test_what_asks_a_tokenizer_that_is_gone(gateway: grpc.aio.Channel) -> None:
    """The harness has a stream to a tokenizer, but no link."""
    stub = VllmEngineStub(gateway)
    calls = [stub.GetModelInfo(vllm.GetModelInfoRequest()), stub.GetLoads(vllm.GetLoadsRequest())]
    for call in [*calls, stub.GetTokenizer(smg.GetTokenizerRequest()).read()]:
        assert (await refusal(call)).code() == CODE.RESOURCE_EXHAUSTED


async def test_the_server_counts_requests_of_all_apis(shim: Shim, gateway: grpc.aio.Channel) -> None:
    answer = generate(gateway)
    handle = (await shim.sent()).submit.choices[0].handle
    info = await VllmEngineStub(gateway).GetServerInfo(vllm.GetServerInfoRequest())
    assert info.active_requests == 1 and info.last_receive_timestamp > 1e9 and info.uptime_seconds > 0
    shim.end(handle)
    await answer


async def test_a_bug_is_an_internal_error(
    shim: Shim, gateway: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shim.generations, "facts", None)
    error = await refusal(generate(gateway, text="a secret"))
    assert error.code() == CODE.INTERNAL
    assert error.details() == "internal server error; the server's log has the details"
    assert "Generate failed" in caplog.text and "a secret" not in caplog.text


async def test_metrics_and_the_span_are_those_of_http() -> None:
    tracing = FakeTracing()
    shim = Shim(connected=True, tracing=tracing)
    async with open_gateway(shim) as channel:
        metadata = (("traceparent", f"00-{'a' * 32}-{'b' * 16}-01"),)
        call = VllmEngineStub(channel).Generate(vllm.GenerateRequest(text="Hi"), metadata=metadata)
        reading = asyncio.ensure_future(call.read())
        handle = (await shim.sent()).submit.choices[0].handle
        shim.accept(handle, [1, 2])
        shim.end(handle)
        await reading
        await refusal(generate(channel, sampling_params=vllm.SamplingParams(temperature=3)))
    labels = {"model_name": "fake", "engine": "0"}
    assert shim.registry.get_sample_value("vllm:prompt_tokens_total", labels) == 2
    assert [(span.name, span.parent) for span in tracing.spans] == [
        ("text_completion fake", metadata[0][1]),
        ("text_completion", ""),
    ]
