"""Which wheels are carried to a machine without a network, and whether they fit its Python."""

from pathlib import Path

import pytest

from loadtest.gpu import wheels
from loadtest.gpu.wheels import CARRIED, fits, install_line, pinned, pip_download
from tests.loadtest.blocked import ROOT


@pytest.mark.parametrize(
    ("wheel", "expected"),
    [
        ("msgspec-0.22.0-cp312-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", True),
        ("pyzmq-27.3.0-cp312-abi3-manylinux_2_26_x86_64.manylinux_2_28_x86_64.whl", True),
        ("llguidance-1.9.1-cp39-abi3-manylinux_2_31_x86_64.whl", True),
        ("starlette-1.10.0-py3-none-any.whl", True),
        ("six-1.0-py2.py3-none-any.whl", True),
        ("msgspec-0.22.0-cp311-cp311-manylinux2014_x86_64.whl", False),
        ("future-1.0-cp313-abi3-manylinux_2_28_x86_64.whl", False),
        ("msgspec-0.22.0-cp312-cp312-manylinux2014_aarch64.whl", False),
        ("msgspec-0.22.0-cp312-cp312-musllinux_1_2_x86_64.whl", False),
        ("msgspec-0.22.0-cp312-cp312-win_amd64.whl", False),
        ("old-1.0-py2-none-any.whl", False),
        ("free-1.0-cp312-cp312t-manylinux_2_28_x86_64.whl", False),
    ],
)
def test_tags_of_wheels_for_python_3_12(wheel: str, expected: bool) -> None:
    assert fits(wheel, "3.12") == expected


def test_every_carried_package_is_pinned() -> None:
    found = pinned(CARRIED, (ROOT / "constraints.txt").read_text())
    assert len(found) == len(CARRIED)
    assert all(line.split("==")[1] for line in found)
    assert pinned(["Foo.Bar"], "foo-bar==1.2  # a comment\n") == ["Foo.Bar==1.2"]
    with pytest.raises(KeyError):
        pinned(["absent"], "foo==1\n")


def test_pip_fetches_only_those_wheels() -> None:
    command = pip_download(Path("gpu-wheels"), "3.12", ["msgspec==0.22.0"])
    assert {"--no-deps", "--only-binary=:all:", "manylinux_2_28_x86_64", "msgspec==0.22.0"} <= set(command)


@pytest.mark.parametrize(
    ("fetched", "status"),
    [
        (["a-1-py3-none-any.whl", "b-2-cp312-cp312-manylinux_2_28_x86_64.whl"], 0),
        (["a-1-py3-none-any.whl"], 1),
        (["a-1-py3-none-any.whl", "b-2-cp311-cp311-manylinux_2_28_x86_64.whl"], 1),
    ],
)
def test_the_folder_is_checked(
    fetched: list[str], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a stand-in for pip that writes files of these names."""
    (tmp_path / "constraints.txt").write_text("a==1\nb==2\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(wheels, "CARRIED", ("a", "b"))
    monkeypatch.setattr(
        wheels, "pip_download", lambda folder, python, wanted: ["touch", *(str(folder / name) for name in fetched)]
    )
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "old-1-py3-none-any.whl").write_text("")
    assert wheels.main(["wheels"]) == status
    assert sorted(path.name for path in (tmp_path / "wheels").iterdir()) == sorted(fetched)
    assert (install_line(Path("wheels")) in capsys.readouterr().out) == (status == 0)


def test_too_many_bytes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "constraints.txt").write_text("a==1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(wheels, "CARRIED", ("a",))
    monkeypatch.setattr(wheels, "MAX_BYTES", -1)
    monkeypatch.setattr(wheels, "pip_download", lambda folder, *rest: ["touch", str(folder / "a-1-py3-none-any.whl")])
    (tmp_path / "wheels").mkdir()
    assert wheels.main(["wheels"]) == 1
