"""The server that `tandem bench latency`, `throughput` and `sweep` measure: a running one, or a new `tandem serve`.

Requests are greedy, with ignore_eos, so that every answer has the requested length. Prompts are random token ids, new
in each run.
"""

import argparse
import secrets
import shlex
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from loadtest.serving.cases import PROMPTS
from loadtest.serving.client import Target, find_model, open_session
from loadtest.serving.command import Parser, UsageError, checked_key, checked_url, number
from loadtest.serving.server import PORT, Command, Server
from loadtest.serving.workloads import Request, random_requests


@dataclass(frozen=True)
class Subject:
    """A running server at `base_url`; None: the server that `command` starts. `model` None: the first it lists."""

    base_url: str | None
    command: Command
    model: str | None
    api_key: str | None
    start_timeout: float  # seconds


def parse(parser: Parser, argv: Sequence[str]) -> tuple[argparse.Namespace, Subject]:
    """Adds the flags of the server to `parser`, the command's. Returns the values of all flags, and the server.

    Arguments after `--` are for `tandem serve`. Raises UsageError with one line that names the flag.
    """
    group = parser.add_argument_group("the server")
    group.add_argument(
        "served",
        nargs="?",
        metavar="MODEL",
        help="model to serve; options of `tandem serve` follow after -- (default: demo)",
    )
    group.add_argument("--base-url", metavar="URL", help="measure this running server instead of starting one")
    group.add_argument("--model", help="name that requests use (default: the first that the server lists)")
    group.add_argument("--api-key", metavar="KEY", help="bearer token; also OPENAI_API_KEY in the environment")
    group.add_argument(
        "--start-timeout",
        type=number(float, 0, above=True),
        default=600.0,
        metavar="S",
        help="time limit for the start of the server (default: 600)",
    )
    own = list(argv)
    at = own.index("--") if "--" in own else len(own)
    values = parser.parse_args(own[:at])
    if values.base_url is not None and (values.served is not None or own[at + 1 :]):
        raise UsageError("--base-url is for a running server: MODEL and options after -- are for a new one")
    if values.base_url is None and values.model is not None:
        raise UsageError("--model is for a server at --base-url: give the model to serve as MODEL, without a flag")
    served = [] if values.served is None else [values.served]
    line = shlex.join([sys.executable, "-m", "services.cli", "serve", *served, *own[at + 1 :], f"--port={PORT}"])
    url = None if values.base_url is None else checked_url(values.base_url)
    key = checked_key(values.api_key)
    return values, Subject(url, Command("tandem serve", line), values.model, key, values.start_timeout)


@asynccontextmanager
async def connect(subject: Subject) -> AsyncIterator[tuple[aiohttp.ClientSession, Target]]:
    """Yields a session and the requests' target. Starts a server, and ends it at exit, if base_url is None.

    Raises Fatal if a new server is not healthy in time, if no server answers, or if `model` is None and the server
    lists none.
    """
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(open_session(subject.api_key))
        url = subject.base_url
        if url is None:
            log = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tandem-"))) / "log"
            server = stack.enter_context(Server(subject.command, log))
            await server.healthy(session, subject.start_timeout)
            url = server.url
        model = await find_model(session, f"{url}/v1/models", subject.model)
        yield session, Target(url, "/v1/completions", model, chat=False, temperature=0.0, ignore_eos=True)


def fresh_requests(count: int, input_len: int, output_len: int) -> list[Request]:
    """Returns requests with new random prompts, so that a prefix cache has no hits."""
    seed = secrets.randbits(64)
    return random_requests(PROMPTS, count=count, input_len=input_len, output_len=output_len, seed=seed)
