"""Which command or option needs which extra of pyproject.toml, and whether it is installed.

Finds modules without importing them: the launcher never loads torch.
"""

from importlib.util import find_spec

_COMMANDS = {
    "serve": "worker",
    "worker": "worker",
    "models": "worker",
    "bench serve": "bench",
    "bench latency": "bench",
    "bench throughput": "bench",
    "bench sweep": "bench",
    "bench kernels": "worker",
}
# Not listed: triton (Linux only; without it the worker runs on a CPU) and matplotlib (without it only plots fail).
_MODULES = {"worker": ("torch", "safetensors"), "bench": ("aiohttp", "tqdm"), "grpc": ("smg_grpc_proto",)}


def missing(command: str) -> str | None:
    """Returns one line that names the missing packages of `command` and how to install them; None if it can run."""
    needed = lacking(_COMMANDS.get(command, ""))
    return f"this command needs {needed}" if needed is not None else None


def lacking(extra: str) -> str | None:
    """Returns the missing packages of an extra and how to install them; None if all are installed."""
    missing = [name for name in _MODULES.get(extra, ()) if find_spec(name) is None]
    return f"{' and '.join(missing)}: pip install 'tandem-llm[{extra}]'" if missing else None
