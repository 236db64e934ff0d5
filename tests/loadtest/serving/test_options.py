"""The command line: defaults, refused flags with their messages, and a test for each flag."""

from math import inf
from pathlib import Path

import pytest

from loadtest.serving.command import UsageError
from loadtest.serving.options import build_parser, parse
from tests.addresses import at


def read(*flags: str) -> object:
    return parse(flags)


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    options = parse([])
    assert (options.base_url, options.endpoint, options.model) == (f"http://{at(8000)}", "/v1/completions", None)
    assert (options.num_prompts, options.random_input_len, options.random_output_len) == (1000, 1024, 128)
    assert (options.request_rate, options.max_concurrency, options.api_key) == (inf, None, None)
    assert (options.ignore_eos, options.temperature, options.metric_percentiles) == (False, None, (99.0,))


def test_ragged_50_has_defaults_of_its_own() -> None:
    options = parse(["--workload=ragged-50"])
    assert (options.num_prompts, options.random_input_len, options.ignore_eos) == (50, 32, True)
    assert parse(["--workload=ragged-50", "--random-input-len=7"]).random_input_len == 7


@pytest.mark.parametrize(
    ("url", "models"),
    [
        ("--base-url=https://example.org:8443/", "https://example.org:8443/v1/models"),
        ("--base-url=http://example.org/v1", "http://example.org/v1/models"),
        ("--host=::1", "http://[::1]:8000/v1/models"),
        ("--port=9", f"http://{at(9)}/v1/models"),
    ],
)
def test_addresses(url: str, models: str) -> None:
    assert parse([url]).models_url == models
    assert parse([url, "--endpoint=/v1/chat/completions", "--tokenizer=demo"]).models_url == models


def test_the_key_comes_from_flag_or_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "environment")
    assert parse([]).api_key == "environment"
    assert parse(["--api-key=flag"]).api_key == "flag"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--num-prompts=0", "argument --num-prompts: 0 must be at least 1"),
        ("--num-prompts=x", "argument --num-prompts: 'x' is not a whole number"),
        ("--request-rate=0", "argument --request-rate: 0 must be more than 0"),
        ("--request-rate=nan", "argument --request-rate: nan must be more than 0"),
        ("--max-concurrency=0", "argument --max-concurrency: 0 must be at least 1"),
        ("--port=0", "argument --port: 0 must be from 1 to 65535"),
        ("--random-range-ratio=1.5", "argument --random-range-ratio: 1.5 must be from 0 to 1"),
        ("--temperature=-1", "argument --temperature: -1 must be at least 0"),
        ("--metric-percentiles=50,101", "argument --metric-percentiles: 101 must be from 0 to 100"),
        ("--percentile-metrics=ttft,speed", "'speed' is not one of ttft, tpot, itl, e2el"),
        ("--base-url=example.org", "--base-url: 'example.org' is not a URL such as http://127.0.0.1:8000"),
        ("--base-url=http://a:b", "--base-url: 'http://a:b' is not a URL such as http://127.0.0.1:8000"),
        ("--base-url=http://a --port=1", "--base-url cannot be combined with --host and --port"),
        ("--endpoint=/v1/embeddings", "'/v1/embeddings' is neither /v1/completions nor /v1/chat/completions"),
        ("--endpoint=/v1/chat/completions", "takes text, not token ids: set --tokenizer"),
        ("--structured-output=yaml", "invalid choice: 'yaml'"),
        ("--structured-output-ratio=0.5", "--structured-output-ratio needs --structured-output"),
        (
            "--structured-output=json --structured-output-ratio=2",
            "argument --structured-output-ratio: 2 must be from 0 to 1",
        ),
        ("--tokenizer=demo --random-first-id=5", "--random-first-id does not apply with --tokenizer"),
        ("--random-last-id=100", "--random-last-id must be more than --random-first-id"),
        ("--result-dir=x", "--result-dir and --result-filename need --save-result"),
        ("--result-filename=x", "--result-dir and --result-filename need --save-result"),
        ("--workload=ragged-50 --num-prompts=3", "--num-prompts does not apply to --workload ragged-50"),
        ("--workload=ragged-50 --request-rate=inf", "--request-rate does not apply to --workload ragged-50"),
        ("--workload=steady", "invalid choice: 'steady'"),
        ("--speed=9", "unrecognized arguments: --speed=9"),
        ("--num-p=9", "unrecognized arguments: --num-p=9"),
    ],
)
def test_wrong_command_lines_are_refused(flags: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(*flags.split())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_each_flag_has_a_test() -> None:
    """In another file, where its effect is tested."""
    sources = "".join(
        path.read_text() for path in Path(__file__).parent.glob("*.py") if path.name != Path(__file__).name
    )
    flags = [
        flag for action in build_parser()._actions for flag in action.option_strings if flag not in ("-h", "--help")
    ]
    assert len(flags) > 20
    assert [flag for flag in flags if flag + "=" not in sources and f'"{flag}"' not in sources] == []
