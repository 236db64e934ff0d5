"""`make hostile`: 50,000 malformed frames and calls on each edge between processes, with the deployment's secret and
without it, and 100,000 hostile HTTP requests. `--frames N --seed N WORDS` repeats a run or a part."""

import argparse
import tempfile
from pathlib import Path

from tests.security.deployment import Deployment
from tests.security.hostile import run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="only attacks with one of these in their names")
    parser.add_argument("--frames", type=int, default=50_000, help="frames of each attack")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Deployment(Path(folder)).running() as deployment:
        run(deployment, args.frames, args.seed, lambda line: print(line, flush=True), words=args.words)
    print("ok: no restart, no traceback, every answer as before")


if __name__ == "__main__":
    main()
