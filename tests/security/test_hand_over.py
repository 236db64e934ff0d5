"""Roles that are started alone: an engine that is stopped hands over what it has not finished."""

import concurrent.futures
from pathlib import Path

import httpx

from tests.e2e.harness import PLAIN_HTTP, wait_for
from tests.security.deployment import Deployment

NUMBER = 12
RUNNING = "vllm:num_requests_running{"


def ask(deployment: Deployment, number: int) -> list[int]:
    body = {"prompt": [number + 5] * 9, "max_tokens": 600, "temperature": 1, "seed": number, "ignore_eos": True}
    url = f"{deployment.url}/v1/completions"
    answer = httpx.post(url, json={**body, "return_token_ids": True}, timeout=120, **PLAIN_HTTP)
    assert answer.status_code == 200, answer.text
    ids: list[int] = answer.json()["choices"][0]["token_ids"]
    return ids


def num_running(deployment: Deployment) -> float:
    page = httpx.get(f"http://{deployment.metrics_addresses[1]}/metrics", timeout=5, **PLAIN_HTTP).text
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(RUNNING))


def test_an_engine_that_is_stopped_hands_over_to_another_one(tmp_path: Path) -> None:
    """Without a launcher, and before its requests end: they go on with the same tokens."""
    options = ["--shutdown-timeout=0.2"]
    with (
        Deployment(tmp_path, engine_options=options, second_engine=True).running() as deployment,
        concurrent.futures.ThreadPoolExecutor(NUMBER) as pool,
    ):
        wait_for(lambda: any("ready after" in line for line in deployment.lines["worker-2"]), "two workers", 30)
        expected = list(pool.map(lambda number: ask(deployment, number), range(NUMBER)))
        answers = [pool.submit(ask, deployment, number) for number in range(NUMBER)]
        wait_for(lambda: num_running(deployment) == NUMBER // 2, "each engine has its share")
        deployment.processes["engine"].terminate()
        assert deployment.processes["engine"].wait(10) == 0
        assert not any(answer.done() for answer in answers), "they had not ended"
        assert [answer.result(120) for answer in answers] == expected
