"""Renders chats for the event loop: small usual ones here, all others in child processes with limits.

A template is code that may run for ever or take all memory, and a large chat takes seconds to read. So a chat is
rendered here only if it is small, uses the model's template, and a worker has rendered its variables quickly before.
Templates of requests have a worker of their own, and so do unusual chats: large ones, and those with variables that no
worker has rendered in a short time yet. None of these can take the workers of usual chats.
"""

import hashlib
import logging

import msgspec

from services.process.fork_server import ForkServer
from services.process.task_pool import TaskFailed, TaskPool, TaskRefused
from services.rpc.errors import TandemError, invalid, unavailable
from services.rpc.generated import text_pb2
from services.telemetry.logs import RateLimitedLog
from services.tokenizer import rendering_worker
from services.tokenizer.chat_renderer import ChatRenderer, RendererSettings
from services.tokenizer.prompt_text import PromptText
from services.tokenizer.rendering_worker import TextLimits
from services.tokenizer.template_probe import NotProbedError

log = logging.getLogger(__name__)

INLINE_BYTES = 2000  # of a chat and its tools: larger ones are rendered by a worker,
INLINE_OBJECTS = 32  # as are those with more messages: some templates look at all of them for each of them
LARGE_BYTES = 2**20
MAX_USUAL_VARIABLES = 4096  # sets of variables that are kept, each as a digest
USUAL, UNUSUAL, TRUSTED = "usual", "unusual", "trusted"  # trusted: with a template of the request
NUM_WORKERS = {USUAL: 2, UNUSUAL: 1, TRUSTED: 1}
MEMORY_BYTES = 512 * 2**20  # of a worker


class TooManyCharactersError(Exception):
    """The rendered text is longer than its limit; it has `num_characters`."""

    def __init__(self, num_characters: int) -> None:
        super().__init__(f"{num_characters} characters")
        self.num_characters = num_characters


class ChatRendering:
    def __init__(self, settings: RendererSettings, timeout: float) -> None:
        """`timeout`: seconds of CPU time for one chat in a worker. Raises Fatal as ChatRenderer."""
        self._renderer = ChatRenderer(settings, may_probe=False)
        setup = msgspec.msgpack.encode(settings)
        self._server = ForkServer(rendering_worker.TARGET, setup, memory_bytes=MEMORY_BYTES, cpu_seconds=timeout)
        self._pools = {kind: TaskPool(self._server, number) for kind, number in NUM_WORKERS.items()}
        self._usual_variables: dict[bytes, None] = {}
        self._failures = RateLimitedLog(log, logging.WARNING)
        self._has_warned = False

    async def start(self) -> None:
        """Starts the process that workers are forked from, so that the first chat does not wait for its imports."""
        await self._server.start()

    async def close(self) -> None:
        """Ends all processes."""
        await self._server.close()
        for pool in self._pools.values():
            pool.close()

    async def render(self, chat: text_pb2.ChatInput, tools_json: bytes, limits: TextLimits) -> PromptText:
        """Returns the prompt. `tools_json`: OpenAI's `tools`; empty: none.

        Raises TandemError (INVALID_ARGUMENT) as ChatRenderer.render, for what cannot be read, and for a chat beyond the
        limits of a worker; TooManyCharactersError for a text beyond `limits`.
        """
        self._renderer.check_trusted(chat)
        if chat.chat_template:
            return _prompt_of(await self._by_worker(TRUSTED, chat, tools_json, limits))
        size = chat.ByteSize() + len(tools_json)
        if size <= INLINE_BYTES and bytes(chat.messages_json).count(b"{") <= INLINE_OBJECTS:
            try:
                return self._renderer.render(chat, tools_json)
            except NotProbedError:
                pass
        variables = hashlib.sha256(chat.template_kwargs_json).digest() if chat.template_kwargs_json else b""
        is_usual = size <= LARGE_BYTES and (not variables or variables in self._usual_variables)
        reply = await self._by_worker(USUAL if is_usual else UNUSUAL, chat, tools_json, limits)
        self._learn(variables, reply)
        return _prompt_of(reply)

    async def _by_worker(
        self, kind: str, chat: text_pb2.ChatInput, tools_json: bytes, limits: TextLimits
    ) -> rendering_worker.Reply:
        call = rendering_worker.Call(chat.SerializeToString(), tools_json, limits)
        try:
            answer = await self._pools[kind].run(msgspec.msgpack.encode(call))
        except TaskRefused as error:
            raise unavailable(f"the chat was not rendered: {error}; try again") from error
        except TaskFailed as error:
            raise self._failed(kind, error) from error
        reply = msgspec.msgpack.decode(answer, type=rendering_worker.Reply)
        if reply.refusal is not None:
            raise invalid(reply.refusal.message, reply.refusal.param)
        return reply

    def _learn(self, variables: bytes, reply: rendering_worker.Reply) -> None:
        """Takes from a reply what later chats of this kind need. Logs once that the model's template drops tools."""
        self._renderer.probes.add(reply.probes)
        if variables and reply.is_usual:
            self._usual_variables[variables] = None
            if len(self._usual_variables) > MAX_USUAL_VARIABLES:
                del self._usual_variables[next(iter(self._usual_variables))]
        if reply.leaves_tools_out and not self._has_warned:
            self._has_warned = True
            log.warning(
                "the chat template leaves tools out of the prompt, so the model does not know of them;"
                " give a template that renders them with --chat-template"
            )

    def _failed(self, kind: str, error: TaskFailed) -> TandemError:
        self._failures.log(f"a chat was not rendered: {error} (--chat-template-timeout)")
        param = "chat_template" if kind == TRUSTED else "messages"
        return invalid(f"the chat template cannot render these messages: {error}", param)


def _prompt_of(reply: rendering_worker.Reply) -> PromptText:
    if reply.prompt is None:
        raise TooManyCharactersError(reply.num_characters)
    return reply.prompt
