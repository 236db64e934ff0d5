"""The function that child processes run: calls and results as bytes. test_preparer.py has the processes."""

import subprocess
import sys

from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.shim.apis.chat.submit import CHAT_TRANSLATION
from services.shim.apis.completions.submit import COMPLETIONS_TRANSLATION
from services.shim.apis.translation import Translation
from services.shim.bulk import MIN_BULK_BYTES
from services.shim.prepare import PrepareOptions
from services.shim.prepare_task import Crashed, Packed, Refused, add_call, setup_of, task, unpack
from tests.shim.harness import FACTS

run = task(setup_of(PrepareOptions(response_role="bot", max_logprob_entries=100)))
HEAVY_MODULES = ("grpc", "prometheus_client", "starlette", "uvicorn", "tokenizers", "torch")


def called(translation: Translation, text: bytes, facts: pb.EngineFacts | None = FACTS) -> Packed | Refused | Crashed:
    body = bytearray(text)
    add_call(body, translation, facts, "group")
    return unpack(run(bytes(body)))


def test_a_small_and_a_large_prompt() -> None:
    text = "x" * MIN_BULK_BYTES
    found = called(COMPLETIONS_TRANSLATION, b'{"prompt": ["a", "%s"], "request_id": "r"}' % text.encode())
    assert isinstance(found, Packed)
    assert (found.facts.model, found.facts.request_id, found.facts.answer.response_role) == ("fake", "r", "bot")
    first, second = [text_pb2.TextSubmit.FromString(bytes(one)) for one in found.submits]
    assert (first.text.text, first.cache_group, second.WhichOneof("input")) == ("a", "group", None)
    assert found.bulk.keys() == {1}
    assert text_pb2.TextSubmit.FromString(bytes(found.bulk[1].input)).text.text == text
    assert found.facts.num_bytes > MIN_BULK_BYTES


def test_refusals_keep_every_field() -> None:
    found = called(CHAT_TRANSLATION, b'{"messages": [{"role": "user"}]}')
    assert isinstance(found, Refused)
    error = TandemError.from_proto(pb.Error.FromString(found.error))
    assert (error.code, error.param) == ("INVALID_ARGUMENT", "messages.0.content")
    found = called(CHAT_TRANSLATION, b'{"messages": [{"role": "user", "content": "Hi"}]}', None)
    assert isinstance(found, Refused)
    error = TandemError.from_proto(pb.Error.FromString(found.error))
    assert (error.code, error.retryable, error.retry_after > 0) == ("UNAVAILABLE", True, True)


def test_a_bug_is_a_result_with_its_traceback() -> None:
    found = called(Translation("other", CHAT_TRANSLATION.request, CHAT_TRANSLATION.submits), b"{}")
    assert isinstance(found, Crashed) and "KeyError" in found.traceback


def test_a_child_imports_little() -> None:
    """What a child imports is memory of the server process that forks it, and time at its start."""
    code = f"import sys, services.shim.prepare_task; print([m for m in {HEAVY_MODULES} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
