"""Renders one chat in a child process (services/process/task_pool.py): bytes in, bytes out.

It also tells what a later rendering on the event loop needs: the results of probes. Only of a chat that was rendered
quickly, so that no variables that make the template run long are ever rendered there.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from services.rpc.errors import TandemError
from services.rpc.generated import text_pb2
from services.tokenizer.chat_renderer import ChatRenderer, RendererSettings
from services.tokenizer.prompt_text import PromptText
from services.tokenizer.template_roles import Fate
from services.tokenizer.text_length import cut
from services.tokenizer.unreadable import refusing_unreadable

TARGET = f"{__name__}:make"
QUICK_SECONDS = 0.01  # of CPU time: a rendering that may take place on the event loop from then on
USUAL_SECONDS = 0.1  # a rendering with variables that are usual from then on
MAX_PROBES = 16  # results of one chat: usual chats have about five, and a hostile one must not fill the cache


class TextLimits(msgspec.Struct, frozen=True, array_like=True):
    """`max_characters`: a longer text does not come back. `kept_characters`: of a prompt that is truncated, how many of
    its characters are needed, from the end, or with `drop_end` from the beginning; None: all."""

    max_characters: int
    kept_characters: int | None = None
    drop_end: bool = False


class Call(msgspec.Struct, array_like=True):
    chat: bytes  # text_pb2.ChatInput
    tools_json: bytes
    limits: TextLimits


class Refusal(msgspec.Struct, array_like=True):
    """A TandemError with the code INVALID_ARGUMENT."""

    message: str
    param: str


class Reply(msgspec.Struct, array_like=True):
    """`prompt` None, without a refusal: it has `num_characters`, which are too many. `is_usual`: it took at most
    USUAL_SECONDS. `probes`: results for the event loop."""

    prompt: PromptText | None = None
    num_characters: int = 0
    refusal: Refusal | None = None
    is_usual: bool = False
    probes: dict[bytes, Fate | bool] = {}
    leaves_tools_out: bool = False


def make(setup: bytes) -> Callable[[bytes], bytes]:
    """Returns the function that answers a Call with a Reply. `setup`: RendererSettings as msgpack."""
    renderer = ChatRenderer(msgspec.msgpack.decode(setup, type=RendererSettings))
    calls, encoder = msgspec.msgpack.Decoder(Call), msgspec.msgpack.Encoder()

    def answer(payload: bytes) -> bytes:
        call = calls.decode(payload)
        del payload
        renderer.probes.used.clear()
        began = time.process_time()
        try:
            with refusing_unreadable():
                prompt = renderer.render(text_pb2.ChatInput.FromString(call.chat), call.tools_json)
        except TandemError as error:
            message = error.message.encode(errors="replace").decode()  # it may quote half of a surrogate pair
            return encoder.encode(Reply(refusal=Refusal(message, error.param)))
        seconds = time.process_time() - began
        reply = _within(prompt, call.limits)
        reply.is_usual = seconds <= USUAL_SECONDS
        reply.probes = _told(renderer.probes.used) if seconds <= QUICK_SECONDS else {}
        reply.leaves_tools_out = renderer.leaves_tools_out
        return encoder.encode(reply)

    return answer


def _within(prompt: PromptText, limits: TextLimits) -> Reply:
    """Returns the reply with the part of the prompt that is needed."""
    if limits.kept_characters is not None:
        prompt = cut_prompt(prompt, limits.kept_characters, drop_end=limits.drop_end)
    num_characters = len(prompt.text)
    return Reply(prompt if num_characters <= limits.max_characters else None, num_characters)


def cut_prompt(prompt: PromptText, num_characters: int, *, drop_end: bool) -> PromptText:
    """Returns the prompt cut as text_length.cut does, with the spans of what is left."""
    text = cut(prompt.text, num_characters, drop_end=drop_end)
    first = 0 if drop_end else len(prompt.text) - len(text)
    return prompt.part(first, first + len(text))


def _told(used: Mapping[bytes, Any]) -> dict[bytes, Fate | bool]:
    """Returns the results that the event loop takes. How the template treats calls is none of them: chats with calls
    are rendered here."""
    found = {key: value for key, value in used.items() if isinstance(value, Fate | bool)}
    return found if len(found) <= MAX_PROBES else {}
