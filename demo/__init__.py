"""The demo checkpoint: a very small chat model that tandem can serve without a download.

Owns the path of the checkpoint and the scripts that trained it. Importing this module loads no other module of tandem.
"""

from pathlib import Path

CHECKPOINT = Path(__file__).parent / "checkpoint"
