"""vLLM's flags about several devices: one device is taken, more are refused with the kind of parallelism."""

import pytest

from tests.options.vllm.calls import refusal, taken


@pytest.mark.parametrize(
    ("short", "name", "kind"),
    [
        ("-tp", "--tensor-parallel-size", "tensor parallelism"),
        ("-pp", "--pipeline-parallel-size", "pipeline parallelism"),
        ("-dp", "--data-parallel-size", "data parallel replicas"),
        ("-pcp", "--prefill-context-parallel-size", "context parallelism"),
        ("-dcp", "--decode-context-parallel-size", "context parallelism"),
        ("-n", "--nnodes", "several machines"),
    ],
)
def test_one_device_is_taken_and_two_are_refused(short: str, name: str, kind: str) -> None:
    assert taken(short, "1") == taken(f"{name}=1") == (name,)
    assert refusal(short, "2") == refusal(f"{name}=2") and kind in refusal(short, "2")
    assert f"{name}: 0 must be at least 1" in refusal(short, "0")
    assert "'two' is not valid" in refusal(name, "two")


def test_what_tunes_several_devices_is_taken() -> None:
    argv = [
        "-ep",
        "--enable-eplb",
        "--eplb-config.window_size=10",
        "--all2all-backend",
        "deepep_low_latency",
        "-r",
        "0",
    ]
    assert len(taken(*argv, "--distributed-executor-backend=mp", "--disable-custom-all-reduce")) == 7


def test_what_places_workers_elsewhere_is_refused() -> None:
    assert "placing workers by Ray" in refusal("--distributed-executor-backend", "ray")
    assert "Python code from outside" in refusal("--worker-extension-cls=a.b")
    assert "CUDA_VISIBLE_DEVICES" in refusal("--device-ids", "0,1")
    assert "replicas" in refusal("-dpn", "0") and "replicas" in refusal("--data-parallel-external-lb")
