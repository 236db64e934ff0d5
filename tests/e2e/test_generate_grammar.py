"""EngineService.Generate with a grammar, on a real worker: the answer follows it, ends with it, can be resumed, and
survives the worker. A grammar that kills workers fails alone."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import grpc
import pytest

from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2
from tests.e2e.api import hf_tokenizer
from tests.e2e.harness import ALL_READY, Server, pid_of, wait_for
from tests.e2e.programs import answer_of, details_of, error_of, fold, responses, run

PROMPT = "Which way to the sea?"
GRAMMAR = '%llguidance {}\nstart: "{\\"name\\": \\"" /[a-z ]{3,8}/ "\\"}"'


LONG = "start: /[a-z ]{280}/"
DEADLY = 400  # characters of a grammar


def request(grammar: str = GRAMMAR, **fields: Any) -> engine_pb2.GenerateTokensRequest:
    sampling = pb.SamplingParams(**{"max_tokens": 60, "temperature": 1, **fields.pop("sampling", {})})
    ids = hf_tokenizer()(PROMPT)["input_ids"]
    return engine_pb2.GenerateTokensRequest(prompt_token_ids=ids, sampling=sampling, grammar=grammar, seed=7, **fields)


def text_of(token_ids: list[int]) -> str:
    return str(hf_tokenizer().decode(token_ids, skip_special_tokens=True))


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_the_answer_follows_the_grammar_and_ends_with_it(server: Server, ignore_eos: bool) -> None:
    answer = answer_of(server, request(n=3, sampling={"ignore_eos": ignore_eos}))
    for choice in answer["choices"].values():
        assert choice["finish_reason"] == "stop"
        assert 3 <= len(json.loads(text_of(choice["token_ids"]))["name"]) <= 8


def test_a_resume_at_each_token_gives_the_same_answer(server: Server) -> None:
    """Also after the last one: then only the end is told."""
    whole = answer_of(server, request())["choices"][0]["token_ids"]
    for count in range(len(whole) + 1):
        resume = engine_pb2.TokensResume(
            choices=[pb.ResumedChoice(index=0, token_ids=whole[:count])], started=engine_pb2.TokensStarted(seed=7)
        )
        answer = answer_of(server, request(resume=resume))["choices"][0]
        assert (answer["token_ids"], answer["finish_reason"]) == (whole[count:], "stop")


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"grammar": "start: nothing"}, "grammar", "nothing"),
        ({"sampling": {"min_tokens": 40}}, "sampling.min_tokens", "min_tokens"),
    ],
)
def test_an_error_names_the_field(server: Server, changes: dict[str, Any], field: str, message: str) -> None:
    error = error_of(server, request(**changes))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT and message in str(error.details())
    violations: Any = details_of(error)["BadRequest"]
    assert [one.field for one in violations.field_violations] == [field]


async def neighbours(text: Any, engine: Any) -> list[Any]:
    """Returns the token ids of eight answers, half of them with a grammar, sent at once."""
    requests = [request(LONG if number % 2 else "", sampling={"max_tokens": 300}) for number in range(8)]
    for number, one in enumerate(requests):
        one.seed, one.sampling.ignore_eos = number, True
    answers = await asyncio.gather(*(responses(text, engine, one) for one in requests))
    return [fold(answer)["choices"][0]["token_ids"] for answer in answers]


def test_answers_survive_workers_and_a_deadly_grammar_fails_alone() -> None:
    env = {"PYTHONPATH": str(Path(__file__).with_name("faults")), "TANDEM_TEST_POISON": f"preparer:{DEADLY}"}
    with Server(env=env) as server:
        wait_for(lambda: ALL_READY in server.log, "the launcher knows that all are ready")
        expected = run(server, neighbours)

        async def killed(text: Any, engine: Any) -> list[Any]:
            task = asyncio.create_task(neighbours(text, engine))
            await asyncio.to_thread(wait_for, lambda: server.stats().num_running == 8, "all run", 60)
            os.kill(pid_of(server, "worker"), signal.SIGKILL)
            await asyncio.to_thread(wait_for, lambda: server.stats().num_running == 8, "all run again", 60)
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await responses(text, engine, request(GRAMMAR.ljust(DEADLY)))
            assert error.value.code() == grpc.StatusCode.INTERNAL
            assert error.value.details() == "the worker died three times while it prepared this request's grammar"
            assert not task.done(), "the answers were too short"
            return await task

        assert run(server, killed) == expected
