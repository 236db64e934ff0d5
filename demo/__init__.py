"""The demo checkpoint: a very small chat model that tandem can serve out of the box.

This package owns the checkpoint's place on disk and the scripts that made it.
Importing it stays cheap, so that the server and the tests may ask only for the path.
"""

from pathlib import Path

CHECKPOINT = Path(__file__).parent / "checkpoint"
