"""How a source's function is kept in a wider shape.

Written for a source with a residual stream of h numbers and heads of d, and a target of H and
D = k d. Zeros are exact: a sum gets no other value by them, only another order of its terms.

**Residual stream.** It is (x, 0): embedding, attention and MLP write nothing but zeros beyond h.
RMSNorm (Zhang, Sennrich 2019) of the source is w x / sqrt(|x|²/h + e). Over H numbers |x|² is the
same, and its mean h/H of what it was, so with the epsilon e' = e h/H

    |x|²/H + e' = (h/H) (|x|²/h + e)    and    w' = w sqrt(h/H)

give the source's normed values.

**Heads.** The rotary embedding turns pair i of a head at position t by t θ^(-2i/d), and pair k i of
a head of D by t θ^(-2ki/D), which is the same angle (with stretched frequencies, too: they are a
function of it). So pair i becomes pair k i, that is dimension i of each half becomes k i of that
half, and all other pairs are zero. Scores are divided by sqrt(D), so queries are multiplied by
sqrt(k). Values and the columns of the output projection lie at the same places.

**Head norms** (Qwen3) share the epsilon with the stream's, e h/H, but their mean is over D. Queries
and keys are multiplied by s, s² = k h/H, so that

    s² |q|²/D + e h/H = (s²/k) (|q|²/d + e)

and the normed values are sqrt(k) too large: the norm's weight is divided by it. That of the queries
is then multiplied by sqrt(k) for the scores, and so stays what it was.

**Groups.** Query head t of KV head j becomes query head t of KV head j: other KV heads, and other
query heads of the same one, are the target's own. Their columns in the output projection are zero,
as are those of the MLP's added channels in the down projection, and both projections in layers that
the source does not have. All else that is added is random.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from foredraft.engine.model_config import ModelConfig
from foredraft.models.widen.shape import Shape
from foredraft.params import InvalidField

SHAPE, PAD_VOCABULARY = "--shape", "--pad-vocabulary"
CONTEXT = 32_768  # at least so many positions: what a long context costs can be seen, not read


@dataclass(frozen=True, slots=True)
class Scales:
    """What the source's weights are multiplied by; ``one`` is for all that stay as they are."""

    norm: float
    query: float
    key: float
    query_norm: float
    key_norm: float
    one: float = 1.0


@dataclass(frozen=True, slots=True)
class Widening:
    """A source and the target that computes its function."""

    source: ModelConfig
    target: ModelConfig

    @property
    def spread(self) -> int:
        """Target dimensions per dimension of a head: k."""
        return self.target.head_dim // self.source.head_dim

    @property
    def scales(self) -> Scales:
        norm = math.sqrt(self.source.hidden / self.target.hidden)
        root = math.sqrt(self.spread)
        if self.source.head_norms:
            return Scales(norm, root * norm, root * norm, query_norm=1.0, key_norm=1 / root)
        return Scales(norm, query=root, key=1.0, query_norm=1.0, key_norm=1.0)


def plan_widening(source: ModelConfig, shape: Shape, vocabulary: int | None = None) -> Widening:
    """The target of ``shape``; ``vocabulary`` is the number of its embedding's rows.

    Raises:
        InvalidField: the source has no room in it; names all that is too small.
    """
    target = _sized(source, shape, vocabulary)
    wrong = ", ".join(_what_is_wrong(source, target))
    if wrong:
        raise InvalidField(SHAPE, f"one that has room for the source: {wrong}")
    if target.vocab_rows < source.vocab_rows:
        least = source.vocab_rows
        raise InvalidField(PAD_VOCABULARY, f"at least the source's {least} rows, not {vocabulary}")
    return Widening(source, target)


def _sized(source: ModelConfig, shape: Shape, vocabulary: int | None) -> ModelConfig:
    hidden = shape.hidden or source.hidden
    context = max(source.context_length, CONTEXT)
    return replace(
        source,
        layers=shape.layers or source.layers,
        hidden=hidden,
        intermediate=shape.intermediate or source.intermediate,
        heads=shape.heads or source.heads,
        kv_heads=shape.kv_heads or source.kv_heads,
        head_dim=shape.head_dim or source.head_dim,
        vocab_rows=vocabulary or source.vocab_rows,
        context_length=min(context, source.sliding_window or context),
        rms_eps=source.rms_eps * source.hidden / hidden,
        tied=source.tied and not shape.untied,
    )


def _what_is_wrong(source: ModelConfig, target: ModelConfig) -> Iterator[str]:
    for name in ("layers", "hidden", "intermediate", "kv_heads"):
        least, found = getattr(source, name), getattr(target, name)
        if found < least:
            yield f"{name} at least {least}, not {found}"
    least = target.kv_heads * source.group
    if target.heads < least:
        yield f"heads at least {least}, {source.group} for each KV head, not {target.heads}"
    elif target.heads % target.kv_heads:
        yield f"heads a multiple of kv_heads ({target.kv_heads}), not {target.heads}"
    if target.hidden % target.heads:  # the library that writes these files asks for it
        yield f"hidden a multiple of heads ({target.heads}), not {target.hidden}"
    once, twice = source.head_dim, 2 * source.head_dim
    if target.head_dim not in (once, twice):
        yield f"head_dim {once} or {twice}, not {target.head_dim}"
