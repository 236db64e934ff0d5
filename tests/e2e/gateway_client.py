"""A client of the gateway API of a real server: its answers in the form in which /v1/completions has them."""

import re
from collections.abc import Iterable
from typing import Any

import grpc
import pytest
from smg_grpc_proto import vllm_engine_pb2 as vllm
from smg_grpc_proto.generated.vllm_engine_pb2_grpc import VllmEngineStub

from tests.e2e.api import Json
from tests.e2e.harness import Server

ADDRESS = re.compile(r"vLLM's engine protocol on grpc://(\S+)")
SECONDS = 120.0


def address_of(server: Server) -> str:
    found = ADDRESS.search(server.log)
    assert found is not None, server.log
    return found.group(1)


class GatewayClient:
    """`stub` has all RPCs. A context manager, which closes the channel."""

    def __init__(self, server: Server) -> None:
        self._channel = grpc.insecure_channel(address_of(server))
        self.stub = VllmEngineStub(self._channel)

    def __enter__(self) -> "GatewayClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def start(self, prompt: str | list[int], *, stream: bool, request_id: str = "", **sampling: Any) -> Any:
        """Starts a Generate call and returns it."""
        request = vllm.GenerateRequest(
            request_id=request_id,
            stream=stream,
            text=prompt if isinstance(prompt, str) else None,
            tokenized=None if isinstance(prompt, str) else vllm.TokenizedInput(input_ids=prompt),
            sampling_params=vllm.SamplingParams(**sampling),
        )
        return self.stub.Generate(request, timeout=SECONDS)

    def ask(self, prompt: str | list[int], *, stream: bool, **sampling: Any) -> Json:
        return folded(self.start(prompt, stream=stream, **sampling), stream=stream)

    def healthy(self) -> bool:
        return bool(self.stub.HealthCheck(vllm.HealthCheckRequest(), timeout=SECONDS).healthy)


def refusal(call: Any) -> grpc.RpcError:
    """Returns the error of a call: of a stream, or of a function that makes a unary one."""
    with pytest.raises(grpc.RpcError) as caught:
        list(call() if callable(call) and not hasattr(call, "cancel") else call)
    return caught.value


def folded(responses: Iterable[vllm.GenerateResponse], *, stream: bool) -> Json:
    """Returns choices and usage. Asserts that every choice has one Complete, the last one that there is of it."""
    token_ids: dict[int, list[int]] = {}
    logprobs: dict[int, list[Json]] = {}
    completes: dict[int, vllm.GenerateComplete] = {}
    for response in responses:
        kind = response.WhichOneof("response")
        found = getattr(response, kind)
        assert found.index not in completes, "something came after the end"
        ids = found.token_ids if kind == "chunk" else found.output_ids
        token_ids.setdefault(found.index, []).extend(ids)
        logprobs.setdefault(found.index, []).extend(_logprobs(found.output_logprobs, len(ids)))
        if kind == "chunk":
            assert stream and ids and found.completion_tokens == len(ids)
        else:
            assert not (stream and ids)
            completes[found.index] = found
    assert token_ids.keys() == completes.keys()
    choices = [
        {
            "token_ids": token_ids[index],
            "logprobs": logprobs[index] or None,
            "finish_reason": completes[index].finish_reason,
            "stop_reason": _stop_reason(completes[index]),
        }
        for index in sorted(completes)
    ]
    counts = {name: getattr(completes[0], name) for name in ("prompt_tokens", "cached_tokens")}
    return {"choices": choices, **counts, "completion_tokens": sum(one.completion_tokens for one in completes.values())}


def _logprobs(found: vllm.OutputLogProbs, num_tokens: int) -> list[Json]:
    if not found.token_ids:
        return []
    assert len(found.token_ids) == len(found.token_logprobs) == num_tokens
    tops = list(found.top_logprobs) or [vllm.TopLogProbs()] * num_tokens
    return [
        {"token": token, "logprob": value, "top": dict(zip(top.token_ids, top.values, strict=True)) | {token: value}}
        for token, value, top in zip(found.token_ids, found.token_logprobs, tops, strict=True)
    ]


def _stop_reason(complete: vllm.GenerateComplete) -> str | int | None:
    kind = complete.WhichOneof("matched_stop")
    return getattr(complete, kind) if kind is not None else None


def over_rest(server: Server, prompt: str | list[int], **fields: Any) -> Json:
    """Returns the answer of /v1/completions in the same form."""
    body = {"prompt": prompt, "return_token_ids": True, "return_tokens_as_token_ids": True, **fields}
    response = server.post("/v1/completions", body)
    assert response.status_code == 200, response.text
    answer = response.json()
    choices = [
        {
            "token_ids": raw["token_ids"],
            "logprobs": _rest_logprobs(raw["logprobs"]),
            "finish_reason": raw["finish_reason"],
            "stop_reason": raw["stop_reason"],
        }
        for raw in answer["choices"]
    ]
    usage = answer["usage"]
    return {
        "choices": choices,
        "prompt_tokens": usage["prompt_tokens"],
        "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        "completion_tokens": usage["completion_tokens"],
    }


def _rest_logprobs(found: Json | None) -> list[Json] | None:
    if found is None:
        return None
    columns = zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True)
    return [
        {"token": _id(token), "logprob": logprob, "top": {_id(one): value for one, value in top.items()}}
        for token, logprob, top in columns
    ]


def _id(token: str) -> int:
    return int(token.removeprefix("token_id:"))
