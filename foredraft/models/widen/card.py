"""The model card of a widened model."""

from __future__ import annotations

from foredraft.models.widen.widening import Widening


def wide_card(name: str, widening: Widening, seed: int) -> str:
    """Markdown; ``name`` is the source's."""
    source, target, scales = widening.source, widening.target, widening.scales
    rows = "\n".join(
        f"| {title} | {getattr(source, field)} | {getattr(target, field)} |"
        for title, field in (
            ("layers", "layers"),
            ("residual stream", "hidden"),
            ("MLP", "intermediate"),
            ("query heads", "heads"),
            ("KV heads", "kv_heads"),
            ("width of a head", "head_dim"),
            ("rows of the embedding", "vocab_rows"),
            ("positions", "context_length"),
            ("RMSNorm's epsilon", "rms_eps"),
        )
    )
    return f"""---
library_name: transformers
base_model: {name}
tags:
- benchmark
---

# {name}, widened

This model computes the function of `{name}`, but for rounding, at the cost of a larger one. It says
nothing that `{name}` would not say, and is of no use but to measure how fast a model of this shape
runs on real text. It was made by `foredraft widen`.

| | `{name}` | this model |
|---|---|---|
{rows}

## What is in it

The source's weights, spread: norms times {scales.norm:g}, queries times {scales.query:g}, keys
times {scales.key:g}. Every other weight that could change the result is exactly zero: what the
embedding and the layers write beyond the source's residual stream, the output projection's columns
of added heads, the down projection's columns of added channels, and both projections in added
layers. Added heads, channels and layers are random otherwise (seed {seed}).

It runs up to {target.context_length} positions; its text is claimed to be no better than that of
`{name}`, whose config.json says {source.context_length}. Rows of the embedding beyond
{source.vocab_rows} are padding: whatever runs the model has to leave out their logits, which are 0.

## Licence

These weights hold those of `{name}`: its licence holds for them, too.
"""
