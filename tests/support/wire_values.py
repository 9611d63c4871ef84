"""Hypothesis strategies for the plain values that cross a process boundary."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from hypothesis import strategies as st

from foredraft.params import FinishReason, SamplingParams, Speculation
from foredraft.wire import messages as m

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
TOKEN = st.integers(0, 2**31 - 1)
SMALL = st.integers(0, 1000)


def number(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, width=32)


def tokens(min_size: int = 0) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(TOKEN, min_size=min_size, max_size=6).map(tuple)


def tuples(items: st.SearchStrategy, max_size: int = 4) -> st.SearchStrategy[tuple]:
    return st.lists(items, max_size=max_size).map(tuple)


PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.integers(500, 2**31 - 1),
    min_tokens=st.integers(0, 500),
    temperature=number(0.0, 100.0),
    top_p=number(0.125, 1.0),
    top_k=TOKEN,
    min_p=number(0.0, 1.0),
    repetition_penalty=number(0.125, 100.0),
    presence_penalty=number(-100.0, 100.0),
    frequency_penalty=number(-100.0, 100.0),
    logit_bias=st.dictionaries(TOKEN, number(-100.0, 100.0), max_size=3).map(MappingProxyType),
    seed=U64,
    stop_token_ids=tokens(),
    ignore_eos=st.booleans(),
    logprobs=st.none() | st.integers(0, 20),
)
OPEN = st.builds(
    m.OpenSequence,
    seq_id=U64,
    incarnation=U32,
    prompt=tokens(min_size=1),
    params=PARAMS,
    committed=tokens(),
    choice=SMALL,
    speculation=st.sampled_from(Speculation),
    traceparent=st.text(max_size=20),
    verify_worker=SMALL,
    tenant=U64,
)
OPENS = st.builds(m.OpenSequences, tuples(OPEN))
CLOSE = st.builds(m.CloseSequence, U64, U32)
CLOSES = st.builds(m.CloseSequences, tuples(CLOSE))
ERROR = st.builds(m.SequenceError, U64, U32, st.integers(0, 16), st.text(max_size=20))
WORKER = st.builds(
    m.WorkerIdentity,
    model=st.builds(m.ModelInfo, st.text(), st.text(), U32, U32, tokens(), st.text()),
    limits=st.builds(m.Limits, U32, U32, U32, U32),
    protocol_version=U32,
)
DRAFTER = st.builds(replace, WORKER, keeps_texts=st.booleans())


@st.composite
def node_groups(draw: st.DrawFn) -> m.NodeGroup:
    count = draw(st.integers(0, 5))

    def column(items: st.SearchStrategy) -> st.SearchStrategy[tuple]:
        return st.lists(items, min_size=count, max_size=count).map(tuple)

    return m.NodeGroup(
        seq_id=draw(U64),
        incarnation=draw(U32),
        root_id=draw(U64),
        complete=draw(st.booleans()),
        tokens=draw(column(TOKEN)),
        parent_ids=draw(column(U64)),
        confidences=draw(column(number(0.0, 1.0))),
        sources=draw(column(st.sampled_from(m.Source))),
    )


NODES = st.builds(m.NodeBatch, tuples(node_groups()))


@st.composite
def commits(draw: st.DrawFn, seq_id: int, *, whole: bool) -> m.Commit:
    """``whole``: with what only the gateway hears of (finish, log-probabilities, hit)."""
    chosen = draw(tokens())
    common = {
        "seq_id": seq_id,
        "incarnation": draw(U32),
        "position": draw(U32),
        "tokens": chosen,
        "accepted": draw(SMALL),
        "orphans": draw(tuples(U64)),
    }
    if not whole:
        return m.Commit(**common)
    entry = st.integers(0, 3).flatmap(
        lambda n: st.builds(
            m.TokenLogprobs,
            number(-100.0, 0.0),
            st.lists(TOKEN, min_size=n, max_size=n).map(tuple),
            st.lists(number(-100.0, 0.0), min_size=n, max_size=n).map(tuple),
        )
    )
    asked = draw(st.booleans())
    return m.Commit(
        **common,
        verified=draw(SMALL),
        hit=draw(st.booleans()),
        finish=draw(st.none() | st.sampled_from(FinishReason)),
        logprobs=tuple(draw(entry) for _ in chosen) if asked else (),
        prompt=draw(st.none() | scored_prompts()),
    )


@st.composite
def scored_prompts(draw: st.DrawFn) -> m.PromptLogprobs:
    """Up to three places, with as many of the best at each."""
    places, top = draw(st.integers(0, 3)), draw(st.integers(0, 2))
    values = number(-100.0, 0.0)
    return m.PromptLogprobs(
        tuple(draw(values) for _ in range(places)),
        tuple(draw(TOKEN) for _ in range(places * top)),
        tuple(draw(values) for _ in range(places * top)),
    )


@st.composite
def commit_lists(draw: st.DrawFn, *, whole: bool) -> tuple[m.Commit, ...]:
    ids = draw(st.lists(U64, max_size=4, unique=True))
    return tuple(draw(commits(seq_id, whole=whole)) for seq_id in ids)


STEP = st.builds(
    m.StepResult,
    step=U64,
    commits=commit_lists(whole=True),
    timings=st.builds(m.StepTimings, U32, U32, U32, U32, U32, U32, U32, U32),
    free_blocks=U32,
    promised=number(0.0, 64.0),
)
VERIFY_BUDGET = st.builds(m.VerifyBudget, U32, U32, st.booleans(), st.sampled_from(m.Schedule))
PRICES = tuples(number(0.0, 100.0))
DRAFT_BUDGET = st.builds(
    m.DraftBudget, U32, U32, number(0.0, 1.0), number(0.0, 1.0), PRICES, PRICES
)
COMMITS = st.builds(m.Commits, commit_lists(whole=False))
DRAFT_CLOSES = st.builds(m.CloseDrafts, tuples(CLOSE), commit_lists(whole=False))
OUTCOMES = st.integers(0, 1000).flatmap(
    lambda guesses: st.builds(
        m.GuessOutcomes,
        source=st.sampled_from(m.Source),
        depth=st.integers(1, m.OUTCOME_DEPTHS),
        bin=st.integers(0, m.OUTCOME_BINS - 1),
        guesses=st.just(guesses),
        predicted=number(0.0, float(guesses)),
        accepted=st.integers(0, guesses),
    )
)
NODE_BLOCKS = st.builds(
    m.NodeBlocks,
    tuples(st.builds(m.NodeBlock, SMALL, st.binary(max_size=8))),
    st.builds(m.DraftTimings, U32, U32, U32),
    tuples(OUTCOMES),
)
