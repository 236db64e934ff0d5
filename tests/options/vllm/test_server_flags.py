"""vLLM's flags about HTTP, logs and the API: logs are not for clients, limits have names of tandem's own."""

import pytest

from tests.options.vllm.calls import refusal, serve, taken


@pytest.mark.parametrize(
    "argv",
    [
        ["--disable-uvicorn-access-log"],
        ["--uvicorn-log-level", "warning"],
        ["--max-log-len=100"],
        ["--enable-log-requests"],
        ["--disable-log-stats"],
        ["--api-server-count", "4"],
        ["-asc=4"],
        ["--sse-keep-alive-interval=0"],
        ["--fingerprint-mode=hash"],
        ["--chat-template-content-format", "string"],
    ],
)
def test_what_no_client_sees_is_taken(argv: list[str]) -> None:
    assert len(taken(*argv)) == 1


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--lora-modules", "a=b", '{"name": "c", "path": "d"}'], "LoRA adapters"),
        (["--middleware", "a.b", "--middleware=c"], "Python code from outside"),
        (["--tool-server=demo"], "tools that the server itself runs"),
        (["--disable-fastapi-docs"], "/docs and /openapi.json"),
        (["--h11-max-incomplete-event-size=1000"], "--max-header-bytes"),
        (["--grpc"], "--grpc-port"),
        (["--chat-template-content-format=openai"], "content of a message as one text"),
        (["--sse-keep-alive-interval=15"], "keep-alive comments"),
        (["--headless"], "replicas"),
    ],
)
def test_what_a_client_would_miss_is_refused_by_name(argv: list[str], named: str) -> None:
    assert named in refusal(*argv)


def test_a_switch_of_the_same_name_is_the_option() -> None:
    assert serve("--enable_request_id_headers").role_values["enable_request_id_headers"] is True
