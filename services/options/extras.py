"""Which command needs which extra of pyproject.toml, and whether it is installed.

Finds modules without importing them: the launcher never loads torch.
"""

from importlib.util import find_spec

_COMMANDS = {
    "serve": "worker",
    "worker": "worker",
    "bench serve": "bench",
    "bench latency": "bench",
    "bench throughput": "bench",
    "bench sweep": "bench",
    "bench kernels": "worker",
}
# Not listed: triton (Linux only; without it the worker runs on a CPU) and matplotlib (without it only plots fail).
_MODULES = {"worker": ("torch", "safetensors"), "bench": ("aiohttp", "tqdm")}


def missing(command: str) -> str | None:
    """Returns one line that names the missing packages of `command` and how to install them; None if it can run."""
    extra = _COMMANDS.get(command)
    lacking = [name for name in _MODULES.get(extra or "", ()) if find_spec(name) is None]
    if not lacking:
        return None
    return f"this command needs {' and '.join(lacking)}: pip install 'tandem-llm[{extra}]'"
