"""A fake Hugging Face hub on loopback: the part of the API that huggingface_hub's snapshot_download uses.

Weights answer like large files do on the hub (https://huggingface.co/docs/hub/api): a redirect to another host, with
size and ETag in headers of their own. A missing repository answers 401, as the hub does to requests without a token.
"""

import hashlib
import json
import re
import socket
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.addresses import HOST, at

PATH = re.compile(r"/(api/models/|cdn/)?([^/]+/[^/]+)/(revision|tree|resolve)/([^/]+)/?(.*)")
LARGE = ".safetensors"
JSON_HEADERS = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Reply:
    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


def _json(content: Any) -> Reply:
    return Reply(200, json.dumps(content).encode(), JSON_HEADERS)


def _missing(status: int, code: str) -> Reply:
    return Reply(status, json.dumps({"error": code}).encode(), {**JSON_HEADERS, "X-Error-Code": code})


def commit_of(folder: Path) -> str:
    """Returns the commit hash of a revision's directory: 40 hex digits, the same for the same path."""
    return hashlib.sha1(str(folder).encode()).hexdigest()


class Hub:
    """Serves `repositories[id][revision]`, directories, as a context manager.

    `requests` are "METHOD path" in the order of arrival. Files with a name that ends with `stalled` are sent
    without their last byte until the hub ends.
    """

    def __init__(self, repositories: dict[str, dict[str, Path]], stalled: str | None = None) -> None:
        self.requests: list[str] = []
        self.stalled = stalled
        self.ending = threading.Event()
        self._repositories = repositories

    def __enter__(self) -> "Hub":
        hub = self

        class Handler(_Handler):
            owner = hub

        self._server = _Server((HOST, 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.url = f"http://{at(self._server.server_port)}"
        self._large_url = f"http://localhost:{self._server.server_port}/cdn"  # another host, as the hub's is
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ending.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def environment(self, home: Path) -> dict[str, str]:
        """Returns the environment of a process that uses this hub, no token, and the cache directory `home`."""
        return {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_TOKEN": "", "HF_HUB_OFFLINE": "0"}

    def downloads(self, suffix: str) -> list[str]:
        """Returns the names of the requested files that end with `suffix`."""
        return [line.rsplit("/", 1)[1] for line in self.requests if line.startswith("GET") and line.endswith(suffix)]

    def reply(self, path: str) -> Reply:
        found = PATH.fullmatch(path)
        if found is None:
            return _missing(404, "EntryNotFound")
        area, repository, what, revision, name = (unquote(group or "") for group in found.groups())
        revisions = self._repositories.get(repository)
        if revisions is None:
            return _missing(401, "RepoNotFound")
        folders = revisions | {commit_of(folder): folder for folder in revisions.values()}
        if revision not in folders:
            return _missing(404, "RevisionNotFound")
        if what == "resolve":
            return self._file(folders[revision], name, path, direct=area == "cdn/")
        return self._listing(folders[revision], repository, what)

    def _listing(self, folder: Path, repository: str, what: str) -> Reply:
        files = sorted(file for file in folder.iterdir() if file.is_file())
        if what == "tree":
            return _json(
                [{"type": "file", "path": f.name, "size": f.stat().st_size, "oid": _digest(f)[:40]} for f in files]
            )
        siblings = [{"rfilename": file.name} for file in files]
        return _json({"id": repository, "sha": commit_of(folder), "siblings": siblings})

    def _file(self, folder: Path, name: str, path: str, *, direct: bool) -> Reply:
        file = folder / name
        if not file.is_file():
            return _missing(404, "EntryNotFound")
        headers = {"X-Repo-Commit": commit_of(folder), "ETag": f'"{_digest(file)}"'}
        if direct or not name.endswith(LARGE):
            return Reply(200, file.read_bytes(), headers)
        large = {"X-Linked-ETag": headers["ETag"], "X-Linked-Size": str(file.stat().st_size)}
        return Reply(302, b"", {**headers, **large, "Location": self._large_url + path})


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


class _Server(ThreadingHTTPServer):
    address_family = socket.AF_INET6 if ":" in HOST else socket.AF_INET


class _Handler(BaseHTTPRequestHandler):
    owner: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._reply(with_body=True)

    def do_HEAD(self) -> None:
        self._reply(with_body=False)

    def _reply(self, *, with_body: bool) -> None:
        path = urlsplit(self.path).path
        self.owner.requests.append(f"{self.command} {path}")
        reply = self.owner.reply(path)
        self.send_response(reply.status)
        for name, value in {**reply.headers, "Content-Length": str(len(reply.body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body and self.owner.stalled and path.endswith(self.owner.stalled):
            self.wfile.write(reply.body[:-1])
            self.owner.ending.wait(60)
        elif with_body:
            self.wfile.write(reply.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: `requests` is the log."""
