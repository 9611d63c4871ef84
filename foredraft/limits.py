"""How much one request may hold, told by lengths alone: before any value is looked at or copied."""

from __future__ import annotations

from collections.abc import Sized

from foredraft.params import InvalidField

# More than the context of any model; what the served model allows is checked where it is known.
MAX_PROMPT_TOKENS = 2**20
MAX_MESSAGES = 16_384
MAX_STOP_TOKEN_IDS = 1_024
MAX_LOGIT_BIASES = 1_024
# Of prompts that are scored: the best tokens count, too. All come in one message, and in one body.
MAX_PROMPT_LOGPROBS = 2**20


def check_count(name: str, values: Sized, most: int, what: str) -> None:
    """Raises InvalidField if there are more than ``most`` values."""
    if len(values) > most:
        raise InvalidField(name, f"at most {most} {what}, not {len(values)}")
