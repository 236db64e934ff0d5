"""`make structured-test`: answers of a random model under every form of structured output, in process and served.

In process: tokens drawn with equal chances from the masks of services/grammar, over the demo model's vocabulary.
Served: the demo model with random weights, temperature 1, 32 requests at a time. Each answer that ends by itself
is judged by jsonschema, regex or comparison; of each other one, a fresh matcher must accept the tokens. The exit status
is 1 after a failure, or if fewer than 90% of the answers with bounded forms end. `--seed N` repeats a run.
"""

import argparse
import asyncio
import json
import math
import sys
import time
from collections.abc import Sequence
from typing import Any

import httpx

from demo import CHECKPOINT
from services.grammar.errors import GrammarError
from services.grammar.tokens import grammar_tokens
from services.rpc.errors import TandemError
from tests.checkpoints import DEMO_VOCAB_SIZE
from tests.e2e.harness import PLAIN_HTTP, Server
from tests.structured.cases import Case, schema_cases, suite_cases, text_cases
from tests.structured.in_process import grammar_of, run_answers
from tests.structured.tally import Tally
from tests.structured.walk import is_accepted

BOUNDED_SHARE = 0.9
CONCURRENCY = 32
EOS_IDS = json.loads((CHECKPOINT / "generation_config.json").read_text())["eos_token_id"]


async def one_answer(client: httpx.AsyncClient, case: Case, seed: int, max_tokens: int) -> httpx.Response:
    """Returns the answer to a completion request with the case's form."""
    body = {
        "prompt": [100 + seed % 800] * 4,
        "max_tokens": max_tokens,
        "temperature": 1,
        "seed": seed,
        "return_token_ids": True,
        "structured_outputs": {case.form: case.value},
    }
    return await client.post("/v1/completions", json=body)


def judge(tally: Tally, tokens: Any, case: Case, response: httpx.Response) -> None:
    """Adds a response to the tally. The server must refuse the forms that are refused in process, and no others."""
    try:
        grammar = grammar_of(tokens, case)
    except (TandemError, GrammarError) as error:
        tally.refused.append(f"{case.name}: {error}")
        if response.status_code != 400:
            tally.fail(f"{case.name}: refused in process ({error}), but the server answers {response.status_code}")
        return
    if response.status_code != 200:
        is_limit = response.status_code == 400 and response.json()["error"].get("param") is not None
        tally.limits += is_limit
        if not is_limit or case.bounded:
            tally.fail(f"{case.name}: HTTP {response.status_code}: {response.text[:300]}")
        return
    choice = response.json()["choices"][0]
    ids = choice["token_ids"]
    ids = ids[:-1] if ids and ids[-1] in EOS_IDS else ids
    text = tokens.decode_bytes(ids)
    if choice["text"].rstrip("\ufffd") != text.decode(errors="replace").rstrip("\ufffd"):
        tally.fail(f"{case.name}: the text differs from its tokens: {choice['text'][:200]!r}")
    tally.add(case, text, choice["finish_reason"] == "stop", is_accepted(tokens, grammar, ids))


async def ask_all(url: str, asked: Sequence[tuple[Case, int]], max_tokens: int) -> list[httpx.Response]:
    """Returns the responses in the order of `asked`, pairs of a case and a seed."""
    slots = asyncio.Semaphore(CONCURRENCY)

    async def one(case: Case, seed: int) -> httpx.Response:
        async with slots:
            return await one_answer(client, case, seed, max_tokens)

    async with httpx.AsyncClient(base_url=url, timeout=600, **PLAIN_HTTP) as client:
        return list(await asyncio.gather(*(one(*each) for each in asked)))


def served(url: str, cases: Sequence[Case], each: int, max_tokens: int, seed: int) -> Tally:
    """Draws `each` answers of every case from the server at `url`."""
    tokens = grammar_tokens(CHECKPOINT, DEMO_VOCAB_SIZE, EOS_IDS)
    asked = [
        (case, seed * 1_000_003 + number * len(cases) + at) for number in range(each) for at, case in enumerate(cases)
    ]
    tally = Tally()
    for (case, _), response in zip(asked, asyncio.run(ask_all(url, asked, max_tokens)), strict=True):
        judge(tally, tokens, case, response)
    return tally


def groups(answers: int) -> list[tuple[str, list[Case], int]]:
    """Returns (name, cases, answers of each case): at least `answers` in all, half of them of the varied schemas."""
    shares = (("300 schemas", schema_cases(), 0.6), ("suite", suite_cases(), 0.2), ("texts", text_cases(), 0.2))
    return [(name, cases, math.ceil(share * answers / len(cases))) for name, cases, share in shares]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=int, default=2000, help="in process, and again through the server")
    parser.add_argument("--max-tokens", type=int, default=400, help="of an answer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--served", action=argparse.BooleanOptionalAction, default=True, help="also through a server")
    args = parser.parse_args()
    tokens = grammar_tokens(CHECKPOINT, DEMO_VOCAB_SIZE, EOS_IDS)
    tallies: list[Tally] = []

    def show(title: str, tally: Tally, began: float) -> None:
        tallies.append(tally)
        print(f"{tally.report(title)}; {time.monotonic() - began:.0f} s", flush=True)

    for name, cases, each in groups(args.answers):
        began = time.monotonic()
        show(f"in process, {name}", run_answers(tokens, cases, each, args.max_tokens, args.seed), began)
    if args.served:
        with Server("--load-format=dummy") as server:
            for name, cases, each in groups(args.answers):
                began = time.monotonic()
                show(f"served, {name}", served(server.url, cases, each, args.max_tokens, args.seed), began)
    ended = all(tally.bounded_share >= BOUNDED_SHARE for tally in tallies if tally.bounded)
    return 0 if ended and not any(tally.failures for tally in tallies) else 1


if __name__ == "__main__":
    sys.exit(main())
