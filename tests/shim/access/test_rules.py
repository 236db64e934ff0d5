"""The caller that a key stands for: in the scope of its request, and by name in the log, which never has the key."""

import asyncio
import hashlib
import logging
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from services.shim.access.keys import ANYONE, caller_of
from tests.shim.harness import Shim, error_of


def keyed(folder: Path) -> Shim:
    file = folder / "keys"
    file.write_text(f"alice, team, {hashlib.sha256(b'secret-a').hexdigest()}\n")
    return Shim(connected=True, api_key=("secret-b",), admin_api_key="secret-c", api_key_file=str(file))


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def show(request: Request) -> Response:
    caller = caller_of(request.scope)
    return JSONResponse([caller.name, caller.group, caller.is_admin])


async def test_a_handler_knows_its_caller(tmp_path: Path) -> None:
    shim = keyed(tmp_path)
    shim.routes.append(Route("/show", show))
    async with shim.http() as http:
        found = [(await http.get("/show", headers=bearer(f"secret-{key}"))).json() for key in "abc"]
    assert found == [["alice", "team", False], ["", "", False], ["admin", "", True]]
    open_shim = Shim()
    open_shim.routes.append(Route("/show", show))
    async with open_shim.http() as http:
        assert (await http.get("/show")).json() == [ANYONE.name, ANYONE.group, False]


async def test_the_submit_has_the_group_and_the_log_the_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    shim = keyed(tmp_path)
    async with shim.http() as http:
        error_of(await http.post("/v1/completions", json={"prompt": 5}, headers=bearer("secret-a")), 400)
        for key in "ab":
            answer = http.post("/v1/completions", json={"prompt": "a"}, headers=bearer(f"secret-{key}"))
            task = asyncio.create_task(answer)
            submit = (await shim.sent()).submit
            assert submit.cache_group == {"a": "team", "b": ""}[key]
            shim.end(submit.choices[0].handle)
            assert (await task).status_code == 200
    records = [(record.getMessage(), vars(record).get("fields", {}).get("key")) for record in caplog.records]
    lines = [record for record in records if record[0].startswith("request ")]
    assert lines == [("request refused", "alice"), ("request finished", "alice"), ("request finished", None)]
    assert "secret-" not in caplog.text + repr([vars(record) for record in caplog.records])
