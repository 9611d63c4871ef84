"""How something that takes a while to make appears in a cache: whole or not at all."""

from __future__ import annotations

from pathlib import Path


def publish(made: Path, directory: Path) -> None:
    """Give the directory ``made``, which is beside it, its name.

    Raises:
        OSError: it cannot be renamed, and no other process has done the same work meanwhile.
    """
    try:
        made.rename(directory)
    except OSError:
        # Another process finished first: a directory that is not empty cannot be replaced.
        if not directory.is_dir():
            raise
