"""`tandem new-secret` and `tandem internal-credentials`, and the client in docs/security.md, which uses their files."""

import asyncio
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from services.security.metrics_token import metrics_token
from tests.e2e.harness import run_tandem
from tests.security.peers import OURS, stats_server

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_secret_does_not_overwrite_an_old_one(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    assert run_tandem("new-secret", f"--out={file}").stdout == f"{file}: a new secret\n"
    content = file.read_bytes()
    assert mode_of(file) == 0o400 and re.fullmatch(rb"[0-9a-f]{64}\n", content)
    assert run_tandem("new-secret", f"--out={file}").stdout == f"{file}: exists already\n"
    assert file.read_bytes() == content and list(tmp_path.iterdir()) == [file]
    assert run_tandem("new-secret", f"--out={tmp_path}/other").returncode == 0
    assert (tmp_path / "other").read_bytes() != content


@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        (["new-secret"], 2, "tandem new-secret: error: --out is missing\n"),
        (
            ["new-secret", "--out=/none/x"],
            1,
            "tandem new-secret: error: --out /none/x: cannot be written: No such file",
        ),
        (["internal-credentials"], 2, "tandem internal-credentials: error: --out is missing\n"),
        (["internal-credentials", "--out=x"], 1, "error: --cluster-secret-file is missing"),
    ],
)
def test_a_missing_option_is_named(args: list[str], status: int, said: str) -> None:
    ended = run_tandem(*args)
    assert (ended.returncode, ended.stdout) == (status, "") and said in ended.stderr


def test_an_empty_secret_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").touch()
    ended = run_tandem("new-secret", f"--out={tmp_path}/secret")
    assert ended.returncode == 1 and "this one has 0" in ended.stderr


async def test_the_client_of_the_documentation(tmp_path: Path) -> None:
    secret, folder = tmp_path / "secret", tmp_path / "credentials"
    secret.write_bytes(OURS.value)
    command = ["internal-credentials", f"--cluster-secret-file={secret}", f"--out={folder}"]
    for _ in range(2):  # the second run replaces the files
        assert (await asyncio.to_thread(run_tandem, *command)).returncode == 0
    assert mode_of(folder) == 0o700
    assert {file.name: mode_of(file) for file in folder.iterdir()} == dict.fromkeys(
        ("ca.pem", "certificate.pem", "key.pem", "metrics-token"), 0o600
    )
    assert (folder / "metrics-token").read_text().strip() == metrics_token(None, OURS)
    (code,) = re.findall("```python\n(.*?)```", PAGE, re.S)
    assert len(code.splitlines()) <= 16
    async with stats_server() as address:
        ended = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", code, address, str(folder)],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert (ended.stdout, ended.returncode) == ("0 running, 0 waiting\n", 0), ended.stderr


def test_every_test_that_the_page_names_exists() -> None:
    rows = [line.split("|") for line in PAGE.splitlines() if re.match(r"\| CVE-\d", line)]
    named = {(file, name) for row in rows for file, name in re.findall(r"`([\w/]+\.py)::(\w+)`", row[5])}
    assert len(rows) > 35 and all("`" in row[5] for row in rows), "each row names a test"
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.M)
    ]
    assert not missing
