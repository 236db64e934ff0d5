"""`make api-test`: schemathesis sends requests made from /openapi.json to a running server, for ten minutes.

No answer may be a 5xx or break the document, and what the document forbids must be refused. The exit status is that of
schemathesis. https://schemathesis.readthedocs.io
"""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

from tests.clients.catalogue import PipClient
from tests.clients.environments import ROOT, environment
from tests.clients.server import running

SCHEMATHESIS = PipClient("schemathesis", ("schemathesis==4.32.5",), "")
# Not positive_data_acceptance: fields that do not go together, such as stream_options without stream, are refused
# though the schema of each one allows it.
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.openapi", description=__doc__)
    parser.add_argument("--seed", type=int, default=16)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--tandem", default=str(ROOT / ".venv/bin/tandem"), help="the command, with its arguments")
    parser.add_argument("--cwd", type=Path, default=ROOT, help="the checkout that the command runs in")
    args = parser.parse_args()
    made = environment(SCHEMATHESIS)
    assert made is not None
    command = [str(Path(made.command[0]).parent / "st"), "run", "--max-time", str(args.seconds)]
    command += ["--seed", str(args.seed), "--checks", ",".join(CHECKS), "--request-timeout", "60", "--no-color"]
    with running(shlex.split(args.tandem), args.cwd, gateway=False) as server:
        return subprocess.run([*command, f"{server.url}/openapi.json"], check=False, cwd=ROOT / "build").returncode


if __name__ == "__main__":
    sys.exit(main())
