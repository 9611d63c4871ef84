"""What the draft model and the suffix cache say about one place, as one list of options.

Either knows what the other does not. A token that both guess is likelier than the model alone makes
it, and one that the model has looked at and not guessed is less likely than the text alone makes
it: both get buckets of their own, so that the calibration learns how much.
"""

from __future__ import annotations

from collections.abc import Sequence

from draft_service.open_options import Option
from foredraft.policy.bucket import agreed_bucket, doubted_bucket


def merged(model: Sequence[Option], suffix: Sequence[Option]) -> Sequence[Option]:
    """Options of a place; ``model`` is empty where the model has not looked.

    A token comes once. What both guess keeps the trail along which the text goes on.
    """
    if not model or not suffix:
        return model or suffix
    others = {option.token: option for option in suffix}
    options = []
    for option in model:
        other = others.pop(option.token, None)
        if other is not None:
            bucket = agreed_bucket(option.bucket, other.bucket)
            option = Option(option.token, bucket, other.trail)
        options.append(option)
    for token, other in others.items():
        options.append(Option(token, doubted_bucket(other.bucket), other.trail))
    return options
