"""/load, /ping and /server_info."""

import dataclasses
from typing import Any

import pytest

from services.options.declarations import ShimOptions
from services.rpc.generated import common_pb2 as pb
from services.shim.server_info import SHOWN_OPTIONS, sampling_defaults, server_info
from services.version import VERSION
from tests.shim.harness import FACTS, LIMITS, Shim, error_of


async def test_the_load_is_what_is_in_progress() -> None:
    shim = Shim(connected=True)
    async with shim.http() as http:
        assert (await http.get("/load")).json() == {"server_load": 0}
        with shim.in_progress.request(), shim.in_progress.request():
            assert (await http.get("/load")).json() == {"server_load": 2}
        assert (await http.get("/load")).json() == {"server_load": 0}


@pytest.mark.parametrize("connected", [True, False])
async def test_ping_is_health(connected: bool) -> None:
    async with Shim(connected=connected, max_concurrent_requests=1).http() as http:
        for method in ("GET", "HEAD", "POST"):
            response = await http.request(method, "/ping")
            assert (response.status_code, response.content) == (200 if connected else 503, b"")
        response = await http.put("/ping")
        assert response.status_code == 405
        assert set(response.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}


async def test_server_info() -> None:
    async with Shim(connected=True, max_concurrent_requests=7).http() as http:
        found = (await http.get("/server_info")).json()
        text = (await http.get("/server_info?config_format=text")).json()
        assert (await http.get("/server_info?config_format=json")).json() == found
    config = found["vllm_config"]
    assert config["model_config"] == {
        "model": "/models/fake", "served_model_name": ["fake"], "max_model_len": FACTS.max_model_len, "max_logprobs": 20
    }  # fmt: skip
    assert config["cache_config"] == {"block_size": FACTS.block_size, "num_gpu_blocks": FACTS.kv_groups[0].num_blocks}
    assert config["scheduler_config"] == {"max_num_seqs": 8}
    assert found["default_sampling_params"] == {
        "temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
    }  # fmt: skip
    assert found["limits"]["max_n"] == LIMITS.max_n and found["options"]["max_concurrent_requests"] == 7
    assert (found["version"], found["system_fingerprint"]) == (VERSION, "fake-numerics")
    assert "max_model_len=64, max_logprobs=20, block_size=4" in text["vllm_config"]
    assert text | {"vllm_config": config} == found


async def test_server_info_takes_no_other_parameter() -> None:
    async with Shim(connected=True).http() as http:
        assert error_of(await http.get("/server_info?verbose=1"), 400)["param"] == "verbose"
        assert error_of(await http.get("/server_info?config_format=xml"), 400)["param"] == "config_format"
    async with Shim().http() as http:
        error_of(await http.get("/server_info"), 503)


async def test_server_info_shows_no_secret() -> None:
    """Every option of the shim has a mark; only those on the list, which is short, may show theirs."""
    marks: dict[str, Any] = {}
    for field in dataclasses.fields(ShimOptions):
        if field.name not in SHOWN_OPTIONS and isinstance(field.default, str | None):
            marks[field.name] = f"marked-{field.name}"
    assert {"admin_api_key", "ssl_keyfile", "cluster_secret", "api_key_file"} <= marks.keys()
    shim = Shim(connected=True, max_concurrent_requests=5)
    shown = dataclasses.replace(shim.options, **marks | {"api_key": ("marked-key",)})
    found = server_info(shown, FACTS)
    assert found["options"].keys() == set(SHOWN_OPTIONS) and "marked" not in str(found)


def test_only_defaults_that_are_set_are_shown() -> None:
    assert sampling_defaults(pb.SamplingParams()) == {}
    given = pb.SamplingParams(temperature=0.7, top_k=20, max_tokens=9, repetition_penalty=1.05)
    assert sampling_defaults(given) == {"temperature": 0.7, "top_k": 20, "max_tokens": 9, "repetition_penalty": 1.05}
