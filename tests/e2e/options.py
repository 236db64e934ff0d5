"""What the tests of options ask a server, and which of its processes they look at."""

from pathlib import Path
from typing import Any

from tests.e2e.harness import Server


def tokens_of(server: Server, prompt: Any, **kwargs: Any) -> list[int]:
    token_ids: list[int] = server.complete(prompt, ignore_eos=True, **kwargs)["token_ids"]
    return token_ids


def model_cards(server: Server) -> list[dict[str, Any]]:
    cards: list[dict[str, Any]] = server.get("/v1/models").json()["data"]
    return cards


def role_pid(server: Server, role: str) -> int:
    return next(pid for pid in server.pids if f"\0{role}\0".encode() in Path(f"/proc/{pid}/cmdline").read_bytes())
