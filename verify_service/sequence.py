"""One sequence as the verifier holds it: its tokens, its KV and its copy of the tree."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from foredraft.engine.sampling import SampledRow
from foredraft.engine.scoring import finite, join, score
from foredraft.params import Speculation
from foredraft.tree.token_tree import Added, TokenTree
from foredraft.wire.messages import (
    Limits,
    ModelInfo,
    NodeGroup,
    OpenSequence,
    PromptLogprobs,
    Source,
)

Key = tuple[int, int]  # (stream, seq_id)
Guess = tuple[int, int, float, Source]  # parent's id, token, confidence, source


@dataclass(slots=True)
class VerifySequence:
    """``fed``: committed tokens whose KV exists. Between steps of a running sequence it is one
    less than ``len(tokens)``: the newest token, the root, has not been run yet. It is 0 again once
    the sequence has lost its blocks; tokens and tree do not depend on them.

    ``ahead``: tokens that steps may commit which run and of which nobody knows the end yet."""

    stream: int
    opened: OpenSequence
    context_length: int
    tokens: list[int]
    tree: TokenTree
    stops: frozenset[int]  # ids that end it
    plain: bool  # its tokens are those that the logits rank first
    blocks: list[int] = field(default_factory=list)
    fed: int = 0
    ahead: int = 0
    cached: int | None = None  # prompt tokens whose KV was known when it was first admitted
    drafted: bool = False  # the drafter is done below the current root
    sound: bool = False  # a step has shown that all its KV is finite
    orphans: list[int] = field(default_factory=list)
    scored: list[PromptLogprobs] = field(default_factory=list)  # of the prompt's chunks so far
    unscorable: bool = False  # numbers of these chunks are not finite

    @classmethod
    def open(
        cls, stream: int, opened: OpenSequence, limits: Limits, model: ModelInfo
    ) -> VerifySequence:
        tokens = [*opened.prompt, *opened.committed]
        return cls(
            stream=stream,
            opened=opened,
            context_length=model.context_length,
            tokens=tokens,
            tree=TokenTree(
                opened.seq_id, opened.incarnation, tokens, limits.max_nodes, limits.max_depth
            ),
            stops=opened.params.ends(model.eos_token_ids),
            plain=opened.params.plain,
        )

    @property
    def key(self) -> Key:
        return self.stream, self.opened.seq_id

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.opened.prompt)

    @property
    def longest(self) -> int:
        """Tokens, prompt included, beyond which it cannot grow."""
        asked = len(self.opened.prompt) + self.opened.params.max_tokens
        return max(len(self.tokens), min(self.context_length, asked))

    @property
    def room(self) -> int:
        """Tokens that still fit the context."""
        return self.context_length - len(self.tokens)

    @property
    def budget(self) -> int:
        """Tokens that may still be delivered."""
        return min(self.opened.params.max_tokens - self.generated, self.room)

    @property
    def ready(self) -> bool:
        """True if only the root is left to run."""
        return self.fed == len(self.tokens) - 1

    @property
    def speculates(self) -> bool:
        return self.opened.speculation is not Speculation.OFF

    def take_cached(self) -> int:
        """The count of cached prompt tokens, once."""
        cached, self.cached = self.cached or 0, 0
        return cached

    @property
    def scoring(self) -> bool:
        """True until the first commit, if that is to tell how likely the prompt's tokens are."""
        return self.opened.score_prompt and self.generated == 0

    def score(self, start: int, logits: Tensor) -> None:
        """Keep how likely the token after each row of the prompt's chunk at ``start`` is."""
        if start == 0:
            self.scored, self.unscorable = [], False  # of a prefill that was cut short
        after = self.tokens[start + 1 : start + 1 + len(logits)]
        self.scored.append(score(logits, after, self.opened.params.logprobs or 0))
        self.unscorable = self.unscorable or not finite(logits)

    def take_scored(self) -> PromptLogprobs | None:
        """What the prompt's chunks gave, once; None if the prompt is not to be scored."""
        if not self.scoring:
            return None
        scored, self.scored = join(self.scored), []
        return scored

    def awaits_drafts(self) -> bool:
        """True until the drafter is done below the current root."""
        return self.speculates and not self.drafted

    @property
    def useful_depth(self) -> int:
        """Deepest node whose acceptance could still be delivered with a token after it."""
        return self.budget - 1

    def attach(self, group: NodeGroup) -> list[Guess]:
        """Take in guesses; unknown parents are remembered for the next commit.

        Returns those that are new nodes.
        """
        new = []
        columns = zip(group.parent_ids, group.tokens, group.confidences, group.sources, strict=True)
        for guess in columns:
            added = self.tree.add(*guess)
            if added is Added.NEW:
                new.append(guess)
            elif added is Added.ORPHAN and guess[0] not in self.orphans:
                self.orphans.append(guess[0])
        if group.root_id == self.tree.root_id:
            self.drafted = group.complete
        return new

    def advance(self, tokens: tuple[int, ...]) -> bool:
        """Take in committed tokens; True on a hit."""
        self.tokens.extend(tokens)
        self.drafted = False
        return self.speculates and self.tree.advance(tokens)

    def sampled_row(self, path: list[int]) -> SampledRow | None:
        """Where the token after ``path`` (tokens below the root) stands; None if it is the best."""
        params = self.opened.params
        if self.plain:
            return None
        return SampledRow(
            params=params,
            choice=self.opened.choice,
            position=len(self.tokens) + len(path),
            prompt_length=len(self.opened.prompt),
            history=(*self.tokens, *path) if params.penalized else (),
        )
