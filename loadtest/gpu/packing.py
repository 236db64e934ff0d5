"""Packs a folder of files into one archive of bounded size, and unpacks Triton's cache from one.

The cache holds compiled kernels by a hash of their source, the compiler and the GPU, so it serves every later call with
the same ones.
"""

import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

MAX_BYTES = 16 * 2**20  # of an archive: what is carried between machines is small
CACHE_FOLDER = Path("build", "triton-cache")  # if TRITON_CACHE_DIR is not set
# What a launch loads. Triton skips the other files of a kernel, intermediate code, where they are missing.
LOADED = (".cubin", ".json", ".so")
EARLIER_ROW, CACHE_ROW, FILES_ROW = "Triton's cache of an earlier call", "Triton's cache", "files of the checks"
GROUP = "__grp__"  # prefix of a kernel's list of files


def cache_folder() -> Path:
    """Returns Triton's cache folder, created if missing. Sets TRITON_CACHE_DIR, which child processes read."""
    folder = Path(os.environ.get("TRITON_CACHE_DIR") or CACHE_FOLDER).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["TRITON_CACHE_DIR"] = str(folder)
    return folder


def unpack_cache(archive: Path, folder: Path) -> str:
    """Adds the kernels of `archive` to the cache `folder`. Returns their number as text.

    Raises OSError or tarfile.TarError for a missing or damaged archive, and for one with paths outside of the folder.
    """
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    groups = list(folder.glob(f"*/{GROUP}*.json"))
    for group in groups:  # the list has absolute paths
        names = json.loads(group.read_text())["child_paths"]
        group.write_text(json.dumps({"child_paths": {name: str(group.parent / name) for name in names}}))
    return f"{len(groups)} kernels unpacked"


def is_loaded(path: Path) -> bool:
    """Returns whether Triton loads this file of its cache at a launch, and finished writing it."""
    return path.suffix in LOADED and not path.parent.name.startswith("tmp.")


def pack(folder: Path, archive: Path, wanted: Callable[[Path], bool] = lambda path: True) -> tuple[int, int]:
    """Writes the `wanted` files of `folder` to `archive` (tar, gzip). Returns the number of files and the archive's
    bytes.

    An archive above MAX_BYTES is removed again; so is one without files.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file() and wanted(path))
    with tarfile.open(archive, "w:gz", compresslevel=6) as packed:
        for path in files:
            packed.add(path, path.relative_to(folder))
    size = archive.stat().st_size
    if not files or size > MAX_BYTES:
        archive.unlink()
    return len(files), size
