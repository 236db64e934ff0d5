"""`tandem bench kernels`: its table in any model's shapes, and its errors."""

import json
import math
from pathlib import Path

import pytest

from kernels.cpu.library import KernelsMissing, VariantRefused
from loadtest.kernels import command as kernels
from loadtest.kernels.cases import Shape, cases
from loadtest.kernels.command import COLUMNS, Timed
from loadtest.kernels.limits import Limits, Work
from tests.e2e.harness import run_tandem

TINY = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 300,
    "num_hidden_layers": 2,
    "max_position_embeddings": 512,
}
OPTIONS = ("--cpu-threads=1", "--repeats=1", "--cpu-kernels=portable")
LIMITS = Limits(memory_bytes=10e9, cache_bytes=100e9, operations=200e9)


def test_every_row_has_positive_numbers(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    ended = run_tandem("bench", "kernels", f"--model={tmp_path}", *OPTIONS)
    assert ended.returncode == 0 and ended.stderr == "", ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("Kernels portable in bfloat16")
    assert "1 of " in lines[0] and "cores during the run" in lines[0] and "GB/s from memory" in lines[1]
    head, _, *rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    assert tuple(head) == COLUMNS
    assert [row[:2] for row in rows] == [[case.kernel, case.shape] for case in cases(Shape(64, 96, 4, 2, 16, 300), 1)]
    for row in rows:
        assert all(float(cell.rstrip("%")) >= 0 for cell in row[2:]), row
        assert float(row[2]) > 0 and float(row[3]) > 0, row


@pytest.mark.parametrize(
    ("work", "limit_us", "share"),
    [
        (Work(cold_bytes=20_000, warm_bytes=100_000, operations=100_000), "2.00", "50.0%"),
        (Work(cold_bytes=20_000, warm_bytes=300_000, operations=100_000), "3.00", "75.0%"),
        (Work(cold_bytes=20_000, warm_bytes=100_000, operations=200_000), "2.00", "50.0%"),
        (Work(cold_bytes=20_000, warm_bytes=100_000, operations=700_000), "3.50", "87.5%"),
    ],
)
def test_the_limit_is_the_longest_of_the_three_times(work: Work, limit_us: str, share: str) -> None:
    cells = Timed("kernel", "shape", work, 4e-6, 10e-6).cells(LIMITS)
    assert cells == ("kernel", "shape", "4.0", "10.0", "2.50", limit_us, share)


@pytest.mark.parametrize(("others", "shown"), [(0.26, "0.3"), (-0.1, "0.0"), (math.nan, "an unknown number of")])
def test_the_report_says_how_many_cores_other_processes_used(others: float, shown: str) -> None:
    assert f" Other processes used {shown} cores" in kernels.report("model", "avx2", 1, LIMITS, others, [])


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        ([], KernelsMissing("installed without its kernels"), "installed without its kernels"),
        (["--cpu-kernels=amx"], VariantRefused("amx: no such instructions"), "--cpu-kernels amx: no such instructions"),
    ],
)
def test_missing_kernels_are_an_error(
    args: list[str], error: Exception, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(variant: str | None) -> None:
        assert variant == ("amx" if args else None)
        raise error

    monkeypatch.setattr(kernels, "load", missing)
    assert kernels.main(args) == 1
    assert capsys.readouterr() == ("", f"tandem bench kernels: error: {message}\n")


def test_the_environment_names_a_variant(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(variant: str | None) -> None:
        raise VariantRefused(f"{variant}: refused")

    monkeypatch.setattr(kernels, "load", refuse)
    monkeypatch.setenv("TANDEM_CPU_KERNELS", "avx2")
    assert kernels.main([]) == 1 and "--cpu-kernels avx2: refused" in capsys.readouterr().err
    monkeypatch.setenv("TANDEM_CPU_KERNELS", "AVX2")
    with pytest.raises(SystemExit):
        kernels.main([])
    assert "TANDEM_CPU_KERNELS: 'AVX2' is not one of amx, " in capsys.readouterr().err


def test_a_model_that_the_decoder_does_not_compute_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kernels.main([f"--model={tmp_path}"]) == 1
    assert "has no config.json" in capsys.readouterr().err
    (tmp_path / "config.json").write_text(json.dumps(TINY | {"architectures": ["Other"]}))
    assert kernels.main([f"--model={tmp_path}"]) == 1
    assert "architectures ['Other'] are not supported" in capsys.readouterr().err


@pytest.mark.parametrize("args", [["--cpu-threads", "0"], ["--repeats=x"], ["--nonsense"], ["--hidden-size=8"]])
def test_a_wrong_command_line_is_refused(args: list[str]) -> None:
    ended = run_tandem("bench", "kernels", *args)
    assert ended.returncode == 2 and args[0].split("=")[0] in ended.stderr
