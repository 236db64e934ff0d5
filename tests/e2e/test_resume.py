"""A request resumed after any number k of its tokens gives the same rest, at the engine and at the tokenizer.

Over real processes with a random-weight model: greedy, and seeded sampling with penalties, min-p, logprobs, and a
stop string.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import demo
from services.rpc.columns import pack_u32, unpack_u32
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, text_pb2
from services.rpc.hello import make_hello
from services.rpc.pieces import text_of
from services.shim.generation import Generation
from services.shim.tokenizer_client import TokenizerClient
from services.tokenizer.choice_output import ChoiceOutput, OutputRules
from services.tokenizer.engine_client import EngineCall, EngineClient, TokenLogprobColumns
from services.tokenizer.vocabulary import Vocabulary
from tests.checkpoints import make_gemma3, make_gpt_oss, make_qwen3, make_qwen3_moe
from tests.e2e.harness import Server
from tests.rpc.pipeline import silent_telemetry

MAX_TOKENS = 20
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": MAX_TOKENS, "ignore_eos": True, "logprobs": 1}
SAMPLED: dict[str, Any] = {
    "temperature": 1.2, "top_p": 0.95, "top_k": 200, "min_p": 0.001, "presence_penalty": 0.5,
    "frequency_penalty": 0.25, "repetition_penalty": 1.1, "max_tokens": MAX_TOKENS, "min_tokens": 4, "logprobs": 2,
}  # fmt: skip
PENALISED: dict[str, Any] = {**GREEDY, "presence_penalty": 1.5, "frequency_penalty": 1.5, "repetition_penalty": 1.1}
SAMPLINGS = {"greedy": GREEDY, "sampled": SAMPLED, "penalised": PENALISED}
PROMPT = [7, 300, 41, 8, 900, 12, 77, 5, 1000, 44]


SHAPES = ["full attention", "windows", *(pytest.param(name, marks=pytest.mark.long) for name in ("experts", "sparse"))]


@pytest.fixture(scope="module", params=SHAPES)
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("model")
    if request.param == "windows":
        path = make_gemma3(folder, seed=5, initializer_range=0.12, sliding_window=7)
    elif request.param == "experts":
        path = make_gpt_oss(folder, seed=5, initializer_range=0.12, sliding_window=7)
    elif request.param == "sparse":
        path = make_qwen3_moe(folder, seed=5)
    else:
        # Narrow enough that the penalties decide between tokens, wide enough that the answers vary without them.
        path = make_qwen3(folder, seed=5, initializer_range=0.12)
    with Server(str(path), "--dtype=float32", "--block-size=4") as running:
        yield running


class Collector:
    """Reads one call to the engine."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[list[tuple[int, float]]] = []
        self.starts: list[int] = []
        self.terminal: asyncio.Future[engine_pb2.Terminal] = asyncio.get_running_loop().create_future()

    def accepted(self, handle: int, accepted: engine_pb2.Accepted) -> None:
        assert accepted.seed == 99

    def tokens(self, handle: int, start_index: int, token_ids: list[int], logprobs: TokenLogprobColumns) -> None:
        self.starts.append(start_index)
        self.token_ids += token_ids
        self.logprobs += [logprobs.of_token(index) for index in range(len(token_ids))]

    def ended(self, handle: int, terminal: engine_pb2.Terminal) -> None:
        self.terminal.set_result(terminal)


async def ask_engine(client: EngineClient, sampling: dict[str, Any], resumed: list[int]) -> Collector:
    collector = Collector()
    choice = pb.Choice(handle=client.dispatcher.new_handle(), choice=1, resumed_token_ids=pack_u32(resumed))
    submit = engine_pb2.Submit(
        request_id="r", prompt_token_ids=pack_u32(PROMPT), seed=99, choices=[choice],
        sampling=pb.SamplingParams(**sampling),
    )  # fmt: skip
    client.dispatcher.start(EngineCall(submit, collector))
    await asyncio.wait_for(collector.terminal, 30)
    return collector


@pytest.mark.parametrize("kind", SAMPLINGS)
async def test_the_engine_resumes_from_every_token(server: Server, kind: str) -> None:
    client = EngineClient((f"unix:{server.runtime_dir}/engine.sock",), make_hello("tokenizer"))
    link = asyncio.create_task(client.links[0].run())
    await asyncio.wait_for(asyncio.shield(client.dispatcher.first_link), 10)
    whole = await ask_engine(client, SAMPLINGS[kind], [])
    assert len(set(whole.token_ids)) > 5
    if kind == "penalised":
        assert whole.token_ids != (await ask_engine(client, GREEDY, [])).token_ids, "the penalties decide"
    for k in range(len(whole.token_ids) + 1):
        steps = (await asyncio.to_thread(server.stats)).num_steps
        rest = await ask_engine(client, SAMPLINGS[kind], whole.token_ids[:k])
        assert rest.token_ids == whole.token_ids[k:], f"resumed after {k} tokens"
        assert_logprobs_close(rest.logprobs, whole.logprobs[k:])
        assert not rest.starts or rest.starts[0] == k
        terminal, expected = rest.terminal.result(), whole.terminal.result()
        assert (terminal.reason, terminal.output_tokens) == (expected.reason, expected.output_tokens)
        if k == len(whole.token_ids):
            assert (await asyncio.to_thread(server.stats)).num_steps == steps, (
                "a request that is complete needs no step"
            )
    link.cancel()
    await asyncio.gather(link, return_exceptions=True)


def assert_logprobs_close(actual: list[list[tuple[int, float]]], expected: list[list[tuple[int, float]]]) -> None:
    assert len(actual) == len(expected)
    for mine, theirs in zip(actual, expected, strict=True):
        assert [token_id for token_id, _ in mine] == [token_id for token_id, _ in theirs]
        assert [value for _, value in mine] == pytest.approx([value for _, value in theirs], abs=1e-4)


def text_submit(
    client: TokenizerClient, sampling: dict[str, Any], resumed: list[int], stop: list[str]
) -> text_pb2.TextSubmit:
    choice = pb.Choice(handle=client.dispatcher.new_handle(), choice=0, resumed_token_ids=pack_u32(resumed))
    return text_pb2.TextSubmit(
        request_id="r", seed=99, choices=[choice], sampling=pb.SamplingParams(**sampling),
        output=text_pb2.OutputSpec(stop=stop, skip_special_tokens=True, spaces_between_special_tokens=True),
        prompt_token_ids=pack_u32(PROMPT), attempt=1 if resumed else 0,
    )  # fmt: skip


async def ask_tokenizer(client: TokenizerClient, submit: text_pb2.TextSubmit) -> tuple[str, list[int], Any]:
    generation = Generation(client, [submit], silent_telemetry(), set())
    content, token_ids = "", bytearray()
    async with asyncio.timeout(30):
        while True:
            (update,) = await generation.take()
            content += text_of(update.pieces)
            token_ids += update.token_ids
            if update.terminal is not None:
                return content, unpack_u32(token_ids), update.terminal


@pytest.mark.parametrize("with_stop", [False, True], ids=["length", "stop-string"])
@pytest.mark.parametrize("kind", SAMPLINGS)
async def test_the_tokenizer_resumes_from_every_token(server: Server, kind: str, with_stop: bool) -> None:
    client = TokenizerClient((f"unix:{server.runtime_dir}/tokenizer-0.sock",), make_hello("shim"))
    link = asyncio.create_task(client.links[0].run())
    await asyncio.wait_for(asyncio.shield(client.dispatcher.first_link), 10)
    content, token_ids, terminal = await ask_tokenizer(client, text_submit(client, SAMPLINGS[kind], [], []))
    stop = [content[len(content) // 2 :][:3]] if with_stop else []
    if with_stop:
        content, token_ids, terminal = await ask_tokenizer(client, text_submit(client, SAMPLINGS[kind], [], stop))
        assert terminal.reason == pb.FINISH_REASON_STOP and terminal.stop_string == stop[0]
        assert terminal.output_tokens < MAX_TOKENS
    for k in range(len(token_ids) + 1):
        submit = text_submit(client, SAMPLINGS[kind], token_ids[:k], stop)
        rest, rest_ids, ended = await ask_tokenizer(client, submit)
        assert rest_ids == token_ids[k:], f"resumed after {k} tokens"
        assert content.endswith(rest), "what was there already is not released again"
        assert (ended.reason, ended.stop_string, ended.output_tokens) == (
            terminal.reason, terminal.stop_string, terminal.output_tokens,
        )  # fmt: skip
        assert released_by(token_ids[:k], SAMPLINGS[kind], stop) + rest == content
    link.cancel()
    await asyncio.gather(link, return_exceptions=True)


def released_by(token_ids: list[int], sampling: dict[str, Any], stop: list[str]) -> str:
    """Returns the text that these first tokens released before the resume."""
    vocabulary = Vocabulary(demo.CHECKPOINT)
    ends = frozenset() if sampling.get("ignore_eos") else frozenset({2})
    rules = OutputRules(stop, False, True, True, ends, sampling.get("min_tokens", 0))
    return text_of(ChoiceOutput(vocabulary.tokenizer, PROMPT, rules).push(token_ids).pieces)
