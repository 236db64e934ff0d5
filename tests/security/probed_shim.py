"""A shim that also measures how late its event loop is: `python -m tests.security.probed_shim FILE shim ARGS`.

FILE is an array of float64 that both processes map: [0] is the number of samples so far, then their ring, each the
seconds by which a timer came late.
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from services import cli
from services.shim import service

RING = 1_000_000
EVERY_SECONDS = 0.002


def open_samples(file: Path) -> npt.NDArray[np.float64]:
    """Returns the shared array of a file, which is made if it does not exist."""
    return np.memmap(file, dtype=np.float64, mode="r+" if file.exists() else "w+", shape=(1 + RING,))


async def probe(samples: npt.NDArray[np.float64]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + EVERY_SECONDS
        await asyncio.sleep(EVERY_SECONDS)
        count = int(samples[0])
        samples[1 + count % RING] = loop.time() - due
        samples[0] = count + 1


Serve = Callable[[Any, Any], Coroutine[Any, Any, None]]


def probed(serve: Serve, file: Path) -> Serve:
    async def run(options: Any, progress: Any) -> None:
        task = asyncio.create_task(probe(open_samples(file)))
        try:
            await serve(options, progress)
        finally:
            task.cancel()

    return run


if __name__ == "__main__":
    service.serve = probed(service.serve, Path(sys.argv[1]))
    sys.exit(cli.main(sys.argv[2:]))
