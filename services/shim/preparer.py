"""Prepares the bodies of requests: small ones on the event loop, large ones in child processes.

json, msgspec and pydantic hold Python's global lock while they parse, so a thread would stop the event loop as well.
"""

from services.options.declarations import ShimOptions
from services.process.fork_server import ForkServer
from services.process.task_pool import TaskFailed, TaskPool, TaskRefused
from services.rpc.errors import TandemError, unavailable
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.shim.apis.translation import AnyTranslation
from services.shim.prepare import Prepared, PrepareOptions, prepare
from services.shim.prepare_task import TARGET, Crashed, Packed, Refused, add_call, setup_of, unpack
from services.shim.time_slices import TimeSlices

INLINE_BYTES = 64 * 1024  # the slowest body of this size takes 5 ms: docs/decisions/0041
MAX_PROCESSES = 2
MEMORY_BYTES = 1024 * 1024 * 1024  # of one process; a body of 64 MiB of token ids takes 0.8 GB
CPU_SECONDS = 10.0  # of one body


class Preparer:
    """One object per process. `close` ends the child processes, which start with `start` or the first large body."""

    def __init__(self, options: ShimOptions) -> None:
        self._options = PrepareOptions(
            ignore_unknown_fields=options.ignore_unknown_fields,
            exclude_tools_when_tool_choice_none=options.exclude_tools_when_tool_choice_none,
            response_role=options.response_role,
            enable_force_include_usage=options.enable_force_include_usage,
            enable_prompt_tokens_details=options.enable_prompt_tokens_details,
            max_logprob_entries=options.max_logprob_entries,
        )
        setup = setup_of(self._options)
        self._server = ForkServer(TARGET, setup, memory_bytes=MEMORY_BYTES, cpu_seconds=CPU_SECONDS)
        self._pool = TaskPool(self._server, MAX_PROCESSES)

    async def start(self) -> None:
        await self._server.start()

    async def close(self) -> None:
        await self._server.close()
        self._pool.close()

    @staticmethod
    def is_inline(size: int) -> bool:
        """Returns whether a body of `size` bytes is prepared on the event loop, without waiting for anything."""
        return size <= INLINE_BYTES

    async def prepare(
        self, translation: AnyTranslation, body: bytearray, facts: pb.EngineFacts | None, cache_group: str = ""
    ) -> Prepared:
        """Returns the request in `body`, which must not be used afterwards. `cache_group`: as of SubmitContext.

        Raises TandemError as prepare.prepare does, and OUT_OF_RANGE (413) for a body that takes more memory or time
        than a child process has, UNAVAILABLE if the system has no process for it.
        """
        if self.is_inline(len(body)):
            return prepare(translation, body, facts, self._options, cache_group)
        size = len(body)
        add_call(body, translation, facts, cache_group)
        try:
            result = await self._pool.run(body)
        except TaskRefused as error:
            raise unavailable(f"the request body was not read: {error}; try again") from error
        except TaskFailed as error:
            raise TandemError("OUT_OF_RANGE", f"the request body of {size} bytes could not be read: {error}") from error
        found = unpack(result)
        if isinstance(found, Refused):
            raise TandemError.from_proto(pb.Error.FromString(found.error))
        if isinstance(found, Crashed):
            raise RuntimeError(f"a body could not be prepared:\n{found.traceback}")
        return await _unpacked(found)


async def _unpacked(found: Packed) -> Prepared:
    slices = TimeSlices()
    submits = []
    for submit in found.submits:
        submits.append(text_pb2.TextSubmit.FromString(bytes(submit)))
        await slices.pause()
    return Prepared(found.facts, submits, found.bulk)
