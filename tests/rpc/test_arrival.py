"""First come, first served over processes: a request that has waited goes before one that came later, whichever of
them reaches the engine first."""

import asyncio
import threading
from pathlib import Path

import pytest

from engine_core.step_plan import StepPlan, StepResult
from services.engine.session import Session
from services.rpc.generated import engine_pb2, text_pb2
from services.tokenizer.prompt_encoder import PromptEncoder
from tests.clock import Clock
from tests.fakes import FakeWorker
from tests.rpc.pipeline import DEADLINE, Pipeline


class Held:
    """What a test holds up: the worker's steps, and the encoding of some prompts. `received` are the texts of the
    submits that have reached the engine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps = threading.Event()
        self.received: list[str] = []
        self.encoding: dict[str, asyncio.Event] = {}  # text -> set to let it be encoded
        self.num_encoded = 0  # begun
        self._changed = asyncio.Condition()
        execute, encode, submit = FakeWorker.execute, PromptEncoder.encode, Session._submit

        def held_execute(worker: FakeWorker, plan: StepPlan) -> StepResult:
            self.steps.wait(DEADLINE)
            return execute(worker, plan)

        async def held_encode(encoder: PromptEncoder, message: text_pb2.TextSubmit) -> list[int]:
            self.num_encoded += 1
            await self._notify()
            if message.text.text in self.encoding:
                await self.encoding[message.text.text].wait()
            return await encode(encoder, message)

        def noted_submit(session: Session, message: engine_pb2.Submit) -> None:
            submit(session, message)
            self.received.append(message.request_id)
            self._notifying = asyncio.create_task(self._notify())

        monkeypatch.setattr(FakeWorker, "execute", held_execute)
        monkeypatch.setattr(PromptEncoder, "encode", held_encode)
        monkeypatch.setattr(Session, "_submit", noted_submit)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def until_received(self, *texts: str) -> None:
        async with asyncio.timeout(DEADLINE), self._changed:
            await self._changed.wait_for(lambda: self.received == list(texts))

    async def until_encoded(self, count: int) -> None:
        async with asyncio.timeout(DEADLINE), self._changed:
            await self._changed.wait_for(lambda: self.num_encoded == count)


async def test_a_request_that_waited_before_a_tokenizers_loss_runs_before_a_later_one(
    socket_dir: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """Encoding it again takes longer than the later one's encoding, so the engine receives it last."""
    held, ended = Held(monkeypatch), []
    async with Pipeline(socket_dir, max_num_seqs=1).running() as pipeline, asyncio.TaskGroup() as tasks:

        async def answer(text: str) -> None:
            await pipeline.fold(pipeline.submit(text, max_tokens=2))
            ended.append(text)

        try:
            for text in ("running", "waiting"):
                tasks.create_task(answer(text))
            await held.until_received("running", "waiting")
            clock.now += 60
            held.encoding["waiting"] = asyncio.Event()
            pipeline.text_proxy.cut_at_heartbeat = True
            await held.until_encoded(4)
            tasks.create_task(answer("later"))
            await held.until_received("running", "waiting", "running", "later")
            held.encoding["waiting"].set()
            await held.until_received("running", "waiting", "running", "later", "waiting")
        finally:
            held.steps.set()
    assert ended == ["running", "waiting", "later"]
