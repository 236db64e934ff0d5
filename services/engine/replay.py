"""`tandem replay FILE`: goes through what an engine's flight recorder wrote, with this version's scheduler."""

import argparse
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import msgspec

from engine_core.flight_recorder import VERSION, Recording
from engine_core.replay import NotReplayable, ReplayDiffers, replay


def main(argv: Sequence[str]) -> int:
    """Returns the exit status: 0 when every plan is the same, 1 when not, 2 for a file that cannot be gone through."""
    parser = argparse.ArgumentParser(
        prog="tandem replay", description="Goes through a recording of an engine again, and compares every plan."
    )
    parser.add_argument("file", type=Path, help="what the engine wrote to its --flight-recorder-dir")
    path = parser.parse_args(argv).file
    try:
        recording = msgspec.msgpack.decode(path.read_bytes(), type=Recording)
        if recording.version != VERSION:
            raise NotReplayable(f"version {recording.version} there, {VERSION} here")
        num_plans = replay(recording)
    except (OSError, msgspec.DecodeError, NotReplayable) as error:
        sys.stderr.write(f"tandem replay: error: {path}: {error}\n")
        return 2
    except ReplayDiffers as differs:
        sys.stdout.write(f"{differs}\n")
        return 1
    except Exception:
        sys.stdout.write(f"the scheduler breaks here as well:\n{traceback.format_exc()}")
        return 1
    sys.stdout.write(f"{num_plans} plans, every one the same again\n")
    return 0
