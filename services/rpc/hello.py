"""The first message on every stream: the sender's role, instance and epoch, and the check that both ends match."""

import os
import time

from services.rpc.generated import common_pb2 as pb
from services.version import PROTOCOL, VERSION


class HelloMismatch(Exception):
    """Two processes cannot work together. The message names both values."""


def make_hello(role: str, *, digest: str = "", engine: pb.EngineFacts | None = None) -> pb.Hello:
    """Returns this process's hello. Call it once: its epoch, the time in nanoseconds, is higher after a restart.

    `digest`: SHA-256 of the tokenizer.json in use, empty if there is none. `engine`: the model's facts, or None.
    """
    return pb.Hello(
        protocol=PROTOCOL,
        role=role,
        instance=f"{role}-{os.getpid()}",
        epoch=time.time_ns(),
        tokenizer_digest=digest,
        engine=engine,
    )


def model_info(hello: pb.Hello | None) -> pb.ModelInfo:
    """Returns the facts in a hello, for programs. None: without facts of the model."""
    if hello is None:
        return pb.ModelInfo(version=VERSION)
    return pb.ModelInfo(
        facts=hello.engine if hello.HasField("engine") else None,
        version=VERSION,
        tokenizer_digest=hello.tokenizer_digest,
    )


def check_hello(mine: pb.Hello, theirs: pb.Hello, expected_roles: tuple[str, ...]) -> None:
    """Raises HelloMismatch unless protocols and tokenizer digests are equal and their role is in `expected_roles`.

    An empty digest matches every other.
    """
    if mine.protocol != theirs.protocol:
        raise HelloMismatch(f"protocol {mine.protocol} here ({mine.role}), {theirs.protocol} there ({theirs.role})")
    if theirs.role not in expected_roles:
        raise HelloMismatch(f"role {' or '.join(expected_roles)} expected, {theirs.role!r} there")
    mine_digest, their_digest = mine.tokenizer_digest, theirs.tokenizer_digest
    if mine_digest and their_digest and mine_digest != their_digest:
        raise HelloMismatch(
            f"tokenizer_digest {mine_digest[:16]} here ({mine.role}), {their_digest[:16]} there ({theirs.role}):"
            " the two read different tokenizer.json files"
        )
