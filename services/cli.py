"""The entry point `tandem`: `tandem serve`, the four roles, and the tools. Imports only the command that runs."""

import functools
import gc
import importlib
import io
import os
import sys
from pathlib import Path
from types import ModuleType

from services.machine.freed_memory import keep_giving_back, lacking_variables
from services.machine.low_priority import at_low_priority
from services.machine.start_anew import start_anew
from services.options.command_line import parse
from services.options.common import SpareOptions
from services.options.declarations import ROLES
from services.options.extras import missing
from services.options.hide_secrets import without_secrets
from services.options.setting import UsageError
from services.version import VERSION

USAGE = """usage: tandem COMMAND [OPTIONS]

  serve [MODEL]         serve a model: start the four roles below and restart them when they exit
  shim                  HTTP server of the OpenAI API
  tokenizer [MODEL]     text to token ids and back
  engine                scheduler and KV cache
  worker [MODEL]        the model on its accelerator
  bench serve           measure throughput and latency of any OpenAI-compatible server
  bench latency         measure the latency of one batch
  bench throughput      measure the tokens per second of many concurrent requests
  bench sweep           measure a server at several concurrencies or request rates
  bench engine          measure the scheduler's time per step
  bench transport       measure latency and CPU time per token from worker to client
  bench kernels         measure the compiled CPU kernels against plain torch and the machine's limit
  models                list the architectures and devices that can be served
  replay FILE           replay a recording of an engine's last steps
  reload                replace the processes behind the shim of a running server
  new-secret            write a new secret for the processes of one deployment
  internal-credentials  write certificates and a token for other programs that call the processes

`tandem COMMAND --help` lists the options of one command; `tandem --version` prints the version.
"""
MODULES = {"serve": "services.process.launcher"} | {role: f"services.{role}.service" for role in ROLES}
MODULES |= {"reload": "services.process.reload_command"}
MODULES |= {"new-secret": "services.security.new_secret", "internal-credentials": "services.security.credentials"}
TOOLS = {"models": "services.worker.models.page", "replay": "services.engine.replay"}
BENCHMARKS = {
    "serve": "loadtest.serving.cli",
    "latency": "loadtest.serving.latency",
    "throughput": "loadtest.serving.throughput",
    "sweep": "loadtest.serving.sweep",
    "engine": "loadtest.engine.command",
    "transport": "loadtest.transport.command",
    "kernels": "loadtest.kernels.command",
}


def main(argv: list[str] | None = None) -> int:
    """Runs the command in `argv`; None: that of the process. Returns the exit status: 0, 1 for a failure, 2 for a wrong
    command line."""
    _escape_unencodable_output()
    # gRPC's core would write lines to stderr, past our log, which any client can cause. Errors of calls are in their
    # status. https://grpc.github.io/grpc/core/md_doc_environment_variables.html
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    own_argv = argv is None
    argv = sys.argv[1:] if argv is None else argv
    command, rest = (argv[0], argv[1:]) if argv else ("--help", [])
    if command in ("-h", "--help"):
        sys.stdout.write(USAGE)
        return 0
    if command == "--version":
        sys.stdout.write(f"tandem {VERSION}\n")
        return 0
    if command == "bench":  # parses its own command line
        return _bench(*rest)
    if command in TOOLS:  # so do these
        return int(importlib.import_module(TOOLS[command]).main(rest)) if _is_installed(command) else 1
    if command not in MODULES:
        commands = ", ".join([*MODULES, "bench", *TOOLS])
        sys.stderr.write(f"tandem: error: unknown command {command!r}; the commands are {commands}\n")
        return 2
    try:
        if own_argv and not {"-h", "--help"}.intersection(rest):  # help answers at once
            _start_small_and_without_secrets(command, rest)
        options = parse(command, rest)
    except UsageError as error:
        sys.stderr.write(f"tandem {command}: error: {error}\n")
        return 2
    if not _is_installed(command):
        return 1
    load = functools.partial(_import, MODULES[command])
    module = at_low_priority(load) if isinstance(options, SpareOptions) and options.load_gently else load()
    keep_giving_back()
    return int(module.main(options))


def _start_small_and_without_secrets(command: str, rest: list[str]) -> None:
    """Executes this program anew if its command line shows secrets or its heap would grow. Raises UsageError.

    `rest`: the arguments behind `command`. Comes before all that reads: what came through a pipe is read once.
    """
    kept, secrets = without_secrets(command, rest)
    heap = lacking_variables()
    if not secrets and not heap:
        return
    words, others = [command, *rest], [command, *kept]
    reason = start_anew(words, others, secrets | heap) if _is_own_program() else "another program runs it"
    os.environ |= heap  # for children
    if secrets:
        sys.stderr.write(
            f"tandem {command}: warning: every user of this machine can read the secrets on the command line"
            f" ({reason}); set {' and '.join(secrets)} instead\n"
        )


def _is_own_program() -> bool:
    """Returns whether the process was started as `tandem` or as `python -m services.cli`: no other program's work is
    done twice."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return Path(sys.argv[0]).name == "tandem" or (spec is not None and spec.name == "services.cli")


def _escape_unencodable_output() -> None:
    """Makes stdout and stderr print characters outside their encoding as escape sequences instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _is_installed(command: str) -> bool:
    """Returns whether the packages that `command` needs are installed; if not, a line on stderr names their extra."""
    lacking = missing(command)
    if lacking is not None:
        sys.stderr.write(f"tandem {command}: error: {lacking}\n")
    return lacking is None


def _import(name: str) -> ModuleType:
    """Returns the imported module. Excludes all objects made so far from garbage collection: they live on."""
    gc.disable()
    module = importlib.import_module(name)
    gc.freeze()
    gc.enable()
    return module


def _bench(command: str = "", *rest: str) -> int:
    if command in ("-h", "--help"):
        sys.stdout.write(USAGE)
        return 0
    if command not in BENCHMARKS:
        commands = ", ".join(BENCHMARKS)
        sys.stderr.write(f"tandem bench: error: unknown command {command!r}; the commands are {commands}\n")
        return 2
    if not _is_installed(f"bench {command}"):
        return 1
    return int(importlib.import_module(BENCHMARKS[command]).main(rest))


if __name__ == "__main__":
    sys.exit(main())
