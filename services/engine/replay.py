"""`tandem replay FILE`: replays an engine's recording with this version's scheduler, and compares every plan."""

import argparse
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import msgspec

from engine_core.flight_recorder import VERSION, Recording
from engine_core.replay import NotReplayable, ReplayDiffers, replay


def main(argv: Sequence[str]) -> int:
    """Returns the exit status: 0 if all plans are equal, 1 if one differs or the scheduler raises, 2 for a bad file."""
    parser = argparse.ArgumentParser(
        prog="tandem replay", description="Replays an engine's recording and compares every plan."
    )
    parser.add_argument("file", type=Path, help="a recording from the engine's --flight-recorder-dir")
    path = parser.parse_args(argv).file
    try:
        recording = msgspec.msgpack.decode(path.read_bytes(), type=Recording)
        if recording.version != VERSION:
            raise NotReplayable(f"the file has version {recording.version}, this tandem replays version {VERSION}")
        num_plans = replay(recording)
    except (OSError, msgspec.DecodeError, NotReplayable) as error:
        sys.stderr.write(f"tandem replay: error: {path}: {error}\n")
        return 2
    except ReplayDiffers as differs:
        sys.stdout.write(f"{differs}\n")
        return 1
    except Exception:
        sys.stdout.write(f"the scheduler raised an error in the replay:\n{traceback.format_exc()}")
        return 1
    sys.stdout.write(f"{num_plans} plans replayed, all equal to the recorded ones\n")
    return 0
