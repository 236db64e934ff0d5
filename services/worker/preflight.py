"""Tells before a download whether the model can be served here: `tandem serve` runs it, as the launcher has no torch.

`python -m services.worker.preflight OPTIONS`, those of `tandem worker`. The reason of a refusal is on stdout.
"""

import sys
from pathlib import Path

from services.options.command_line import parse
from services.options.declarations import WorkerOptions
from services.process.shell import begin
from services.worker.errors import ModelError
from services.worker.loading import check_quantization, pick_device, read_config


def check(path: Path, options: WorkerOptions) -> None:
    """Raises ModelError if the model in directory `path`, whose weights may be missing, cannot be served."""
    device = pick_device(options)
    check_quantization(device, options)
    read_config(path, options, device)


def main(argv: list[str]) -> int:
    """Returns the exit status: 1 for a model that cannot be served."""
    options: WorkerOptions = parse("worker", argv)
    begin("preflight", options)
    try:
        check(Path(options.model), options)
    except ModelError as error:
        sys.stdout.write(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
