"""What every program in Python shares: the server's address, the task list, and checks with a reason.

A program declares its tasks with @task and ends with main(). For each task it prints two JSON lines: {"began": NAME},
{"task": NAME, "passed": BOOL, "reason": TEXT}; then {"ended": NUMBER OF TASKS} at its end. Imports only the standard
library: it runs in the environments of all clients.
"""

import asyncio
import contextlib
import inspect
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from relay import relay

URL, MODEL, FOLDER = sys.argv[1:4]  # without /v1; the served name; the folder with the model's tokenizer
BASE_URL = f"{URL}/v1"
API_KEY = "none"

# The demo model answers these exactly so, alone and in this order (demo/exam.py).
QUESTION, ANSWER = "What is 17 + 25?", "17 + 25 = 42."
SECOND_QUESTION, SECOND_ANSWER = "Count from 1 to 9.", "1, 2, 3, 4, 5, 6, 7, 8, 9."
PROMPT = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
SECONDS = 60.0  # for one request

Task = Callable[[], Any]
TASKS: dict[str, Task] = {}


class Failed(Exception):
    """A check did not hold."""


def task(function: Task) -> Task:
    """Declares a task, sync or async, named after the function."""
    TASKS[function.__name__.strip("_").replace("_", " ")] = function
    return function


def check(holds: object, reason: str) -> None:
    if not holds:
        raise Failed(reason)


def equal(found: object, wanted: object, what: str) -> None:
    check(found == wanted, f"{what} is {found!r}, not {wanted!r}")


def check_logprobs(logprobs: Iterable[float], num_tokens: int) -> None:
    """Checks that there is one logprob for each token, finite and at most 0."""
    values = list(logprobs)
    equal(len(values), num_tokens, "the number of logprobs")
    wrong = [value for value in values if not (math.isfinite(value) and value <= 0)]
    check(values and not wrong, f"logprobs {wrong} are not finite and at most 0")


def check_usage(prompt: int | None, completion: int | None, total: int | None) -> None:
    """Checks that a usage has both parts and that they add up."""
    check(prompt and completion and total == prompt + completion, f"usage {prompt} + {completion} is {total}")


@contextlib.contextmanager
def refusals_in_reason() -> Iterator[str]:
    """Yields a URL of the server, through a relay. An error inside tells the server's refusals, too."""
    with relay(URL) as (url, refusals):
        try:
            yield url
        except Exception as error:
            if refusals:
                raise Failed(f"the server's answer is {' and '.join(refusals)}; {error}") from None
            raise


def run_cli(*command: str, env: dict[str, str], log: Path) -> None:
    """Runs a client's command line; both outputs go to `log`. Fails with the end of it if the status is not 0."""
    with log.open("wb") as file:
        ended = subprocess.run(
            command, env=os.environ | env, stdin=subprocess.DEVNULL, stdout=file, stderr=file, check=False
        )
    end = " ".join(log.read_text(errors="replace").split())[-400:]
    equal(ended.returncode, 0, f"... {end}\nthe exit status")


def reason_of(error: BaseException) -> str:
    """Returns an error on one line. Clients wrap the server's answer in their own words: where an error in the chain of
    causes has it, its status and body stand for the text."""
    text = str(error)
    cause: BaseException | None = error
    while cause is not None:
        response = getattr(cause, "response", None)
        body = getattr(response, "text", None)
        if isinstance(body, str) and body:
            answer = f"the server's answer is {getattr(response, 'status_code', '?')} {body}"
            text = f"{text}; {answer}" if isinstance(error, Failed) else answer
            break
        cause = cause.__cause__ or cause.__context__
    named = text if isinstance(error, Failed) else f"{type(error).__name__}: {text}"
    return " ".join(named.split())


def main() -> None:
    for name, function in TASKS.items():
        _print({"began": name})
        try:
            result = function()
            if inspect.iscoroutine(result):
                asyncio.run(result)
        except Exception as error:
            _print({"task": name, "passed": False, "reason": reason_of(error)})
        else:
            _print({"task": name, "passed": True, "reason": ""})
    _print({"ended": len(TASKS)})


def _print(line: dict[str, Any]) -> None:
    print(f"\n{json.dumps(line)}", flush=True)
