"""Which variant of the compiled kernels is loaded: by default, by name, and on machines that lack some of them."""

import subprocess
import sys
from typing import Any

import pytest

from kernels.cpu import library as library_module
from kernels.cpu.library import VARIANTS, KernelsMissing, Library, VariantRefused, best_variant, load, runnable_variants
from services.options.declarations import CPU_KERNELS


class Variant:
    """The portable kernels under another name. With `right` False, products read the second row as the first."""

    def __init__(self, name: str, best: str, right: bool) -> None:
        self.NAME, self._best, self._right, self._library = name, best, right, REAL

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def best_variant(self) -> str:
        return f"_{self._best}"

    def product(self, type_: str, out_type: str, x: int, x_stride: int, rows: int, *others: int) -> None:
        skipped = 0 if self._right else int(rows > 1)
        self._library.product(type_, out_type, x + 2 * x_stride * skipped, x_stride, rows - skipped, *others)


REAL = load("portable")


class Machine:
    """A machine that can run `best` and all later variants. `missing` were not built; `wrong` fail the self-check."""

    def __init__(self, best: str, missing: str = "", wrong: str = "") -> None:
        self._best, self._missing, self._wrong = best, missing.split(), wrong.split()
        self.imported: set[str] = set()

    def module(self, variant: str) -> Variant:
        self.imported.add(variant)
        if variant in self._missing:
            raise ImportError(variant)
        return Variant(variant, self._best, variant not in self._wrong)


MACHINES = [
    pytest.param(Machine("amx"), list(VARIANTS), "", id="amx"),
    pytest.param(Machine("amx", wrong="amx"), ["avx512bf16", "avx2", "portable"], "computes wrongly", id="amx wrong"),
    pytest.param(Machine("amx", missing="amx"), ["avx512bf16", "avx2", "portable"], "not build", id="amx missing"),
    pytest.param(Machine("avx512bf16"), ["avx512bf16", "avx2", "portable"], "", id="avx512bf16"),
    pytest.param(Machine("avx512bf16", missing="avx2"), ["avx512bf16", "portable"], "", id="avx2 missing"),
    pytest.param(Machine("avx512bf16", missing="avx512bf16 avx2"), ["portable"], "not build", id="both missing"),
    pytest.param(Machine("portable"), ["portable"], "", id="portable"),
]


def name_of(found: Library) -> str:
    return found.NAME


@pytest.fixture
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Machine:
    here: Machine = request.param
    monkeypatch.setattr(library_module, "_module", here.module)
    return here


@pytest.mark.parametrize(("machine", "runnable", "text"), MACHINES, indirect=["machine"])
def test_the_fastest_that_runs_is_the_default(
    machine: Machine, runnable: list[str], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names each faster variant that the machine has the instructions for, and why it is not used."""
    assert runnable_variants() == runnable
    assert name_of(load()) == runnable[0]
    left_out = VARIANTS[VARIANTS.index(best_variant()) : VARIANTS.index(runnable[0])]
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [f"CPU kernels {v}" for v in left_out]
    if left_out:
        assert text in caplog.text and f"{runnable[0]} is used instead" in caplog.text


@pytest.mark.parametrize(("machine", "runnable", "text"), MACHINES, indirect=["machine"])
def test_a_variant_by_name_is_that_one_or_refused(machine: Machine, runnable: list[str], text: str) -> None:
    for variant in VARIANTS:
        if variant in runnable:
            assert name_of(load(variant)) == variant
        else:
            with pytest.raises(VariantRefused, match=f"^{variant}: .*; this machine runs {', '.join(runnable)}$"):
                load(variant)


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        (Machine("avx2"), "this machine does not offer its instructions"),
        (Machine("amx", missing="amx"), "the compiler did not build it"),
        (Machine("amx", wrong="amx"), "it computes wrongly on this machine"),
    ],
    indirect=["machine"],
    ids=["instructions", "missing", "wrong"],
)
def test_a_refusal_says_why(machine: Machine, reason: str) -> None:
    with pytest.raises(VariantRefused, match=f"^amx: {reason}; "):
        load("amx")


@pytest.mark.parametrize("machine", [Machine("avx2")], indirect=True)
def test_what_the_machine_cannot_execute_is_not_imported(machine: Machine) -> None:
    """Importing a module may execute instructions of its variant."""
    load()
    with pytest.raises(VariantRefused):
        load("avx512bf16")
    assert machine.imported == {"avx2", "portable"}


@pytest.mark.parametrize("machine", [Machine("avx2", missing=" ".join(VARIANTS))], indirect=True)
@pytest.mark.parametrize("variant", [None, *VARIANTS])
def test_without_any_compiled_kernels(machine: Machine, variant: str | None) -> None:
    with pytest.raises(KernelsMissing, match=r"is there a C\+\+ compiler"):
        load(variant)


@pytest.mark.parametrize("variant", runnable_variants())
def test_this_machine_loads_only_the_requested_variant(variant: str) -> None:
    """And the portable one, which detects the machine's instructions."""
    code = f"from kernels.cpu.library import load; print(load({variant!r}).NAME, open('/proc/self/maps').read())"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    name, maps = ended.stdout.split(maxsplit=1)
    assert name == variant
    assert {one for one in VARIANTS if f"kernels/cpu/_{one}." in maps} == {variant, "portable"}


def test_the_option_has_the_variants() -> None:
    """The option's declaration cannot import the kernels, so the names are repeated there."""
    assert CPU_KERNELS == VARIANTS
