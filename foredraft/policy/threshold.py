"""When a pass of the draft model pays: its gain against the time for which the target waits.

A pass that takes c milliseconds while the target's steps wait for it is paid for by everybody: in
that time the target would have brought c · r tokens at its current rate r, in tokens per
millisecond over all of its sequences. It brings the tokens that its new nodes are expected to add
to the step. With k the rank of a new child below a place that is looked at, and w the chance that
the target comes to that place and leaves the tree there,

    gain of a look = Σ over k of max(0, w · (chance that the k-th best guess is right) - p)

where p is what a node has to bring for its own row of the target's pass, r times the milliseconds
of a row. Looks are made best first, each as long as it gains its own row of the draft's pass, and
the pass is made if all together gain

    Σ gain ≥ r · c(rows)

At the best stopping point the marginal gain per millisecond equals the tokens per millisecond that
result, and r is measured with the rule in force: so following it leads there (Charnov's marginal
value theorem; as an iteration Dinkelbach's).

Where nobody waits a pass costs no tokens. Then a look is made as long as it does not lower the
gain per millisecond of the pass, because the next one serves a newer text.
"""

from __future__ import annotations

from collections.abc import Sequence

from foredraft.policy.pass_cost import PassCost

LEAST_SURVIVAL = 0.01  # of a node where prices decide: they say what the model looks at
# Times its own duration is what a pass costs on cores with which the target computes, too: messages
# and whatever else it makes both wait for are not in it.
CORES_BURDEN = 1.5
_PROBE_SHARE = 0.005  # of all time is what passes that do not pay may take, to see whether they do


def look_gain(worth: float, looks: Sequence[float], tokens_per_row: float) -> float:
    """Tokens that the children of one place are expected to add.

    Args:
        worth: chance that the target comes to the place and leaves the tree there.
        looks: chances that the draft's best guess is right, its second, and so on.
        tokens_per_row: what a node must bring to be worth its row of the target's pass.
    """
    gain = 0.0
    for chance in looks:
        more = worth * chance - tokens_per_row
        if more > 0.0:
            gain += more
    return gain


def belongs(
    gain: float, rows: int, before: float, rows_before: int, cost: PassCost, tokens_per_ms: float
) -> bool:
    """True if a look that gains so much belongs in a pass that gains ``before`` without it."""
    rate = tokens_per_ms
    if rate <= 0.0:
        rate = before / max(cost(rows_before), 1e-9)
    return gain >= rows * cost.per_row * rate


def pays(gain: float, rows: int, cost: PassCost, tokens_per_ms: float) -> bool:
    """True if a pass of so many rows brings as much as the time that it takes."""
    return gain >= tokens_per_ms * cost(rows)


def worth_reading(
    gain: float, pass_ms: float, reading_ms: float, tokens_left: int, tokens_per_ms: float
) -> bool:
    """True if a text that the model has not read is worth its time, for looks before each step.

    Args:
        gain: tokens that a look adds to a step.
        pass_ms: of that look.
        reading_ms: of the text, in which the target is slower or waits.
        tokens_left: most that may still come; on average it is half of that.
    """
    steps = 0.5 * tokens_left / (1.0 + gain)
    return steps * (gain - tokens_per_ms * pass_ms) >= tokens_per_ms * reading_ms


def may_probe(idle_ms: float, pass_ms: float) -> bool:
    """True if a pass that does not pay may be made all the same, after so long without any.

    Nothing is learned of a draft that is never asked.
    """
    return pass_ms <= _PROBE_SHARE * idle_ms
