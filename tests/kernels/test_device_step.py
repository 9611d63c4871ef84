"""Whole steps on the device, the model's pass included, beside the verify service's own steps.

Trees are random, and so are sampling parameters; the model is tiny, in FP8, by its references (on a
GPU by its kernels).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import pytest
import torch
from support.device_sampling import Slot, options_of
from support.device_trees import nodes_in, nodes_of, signed
from support.tiny_models import make_tiny_llama

from foredraft.config import EngineConfig
from foredraft.engine.fp8.device_step import DeviceStep, StepBucket, StepLimits
from foredraft.engine.fp8.kv import CodedKV
from foredraft.engine.fp8.model import Model
from foredraft.engine.fp8.runner import Fp8Runner
from foredraft.engine.fp8.slot_options import Chosen, write_slot
from foredraft.params import SamplingParams
from foredraft.policy.cost import StepCost
from foredraft.tree.node_id import child_id
from foredraft.wire.messages import Limits, NodeGroup, OpenSequence, Source
from kernels.sampling_options import SamplingOptions
from kernels.tree_append import FULL, KNOWN, NEW
from verify_service.reservations import Reservations
from verify_service.sequence import VerifySequence
from verify_service.step import run, select

VOCAB, EOS, CONTEXT = 64, (2,), 192
NODES, DEPTH, ALLOWED = 8, 4, 6
COST = StepCost((1, 64), (5.0, 6.0))
PROMPTS = (3, 66)
PARAMS = (
    SamplingParams(max_tokens=6, ignore_eos=True),
    SamplingParams(
        temperature=0.9, presence_penalty=1.0, logit_bias={7: 2.0}, seed=5, ignore_eos=True
    ),
)


@dataclass(frozen=True, slots=True)
class Twins:
    """The same weights twice, each with KV of its own: for the service, and for the device."""

    service: Fp8Runner
    device: Fp8Runner


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Twins:
    directory = make_tiny_llama(
        tmp_path_factory.mktemp("model"), layers=1, hidden=64, vocab=VOCAB, context=CONTEXT
    )
    service = Fp8Runner.load(EngineConfig(directory, dtype="fp8", kv_memory_mib=1))
    weights, operations = service._model.weights, service._model.operations
    kv = CodedKV(weights.config, 1, weights.embedding.device)
    return Twins(service, Fp8Runner(Model(weights, kv.memory, operations), kv, service.info))


def opened(twins: Twins, memory: Reservations, rng: random.Random) -> Iterator[VerifySequence]:
    """Sequences whose prompts both twins have read, into blocks of the same numbers."""
    limits = Limits(len(PARAMS), NODES, DEPTH)
    for index, (length, params) in enumerate(zip(PROMPTS, PARAMS, strict=True)):
        prompt = tuple(rng.choices(range(3, VOCAB), k=length))
        told = OpenSequence(index, 1, prompt, params)
        sequence = VerifySequence.open(0, told, limits, twins.service.info)
        memory.admit(sequence)
        sequence.fed = length - 1
        for runner in (twins.service, twins.device):
            for start in range(0, sequence.fed, runner.chunk):
                end = min(start + runner.chunk, sequence.fed)
                runner.prefill(sequence.blocks, prompt[start:end], start)
        yield sequence


def guesses_for(
    sequence: VerifySequence, rng: random.Random, known: list[int]
) -> tuple[list[int], list[int], list[float]]:
    """Parents, tokens, confidences: mostly what will be said, others beside it."""
    parents, tokens, confidences = [], [], []
    parent = sequence.tree.root_id
    for step in range(rng.randrange(2, 5)):
        place = len(sequence.tokens) + step
        right = known[place] if place < len(known) else rng.randrange(3, VOCAB)
        for token in (right, rng.randrange(3, VOCAB)):
            parents.append(parent)
            tokens.append(token)
            confidences.append(torch.tensor(rng.uniform(0.3, 1.0)).item())
        parent = child_id(parent, right)
    return parents, tokens, confidences


def plainly(twins: Twins) -> list[list[int]]:
    """What the sequences say without guesses."""
    memory = Reservations(twins.service)
    sequences = list(opened(twins, memory, random.Random(1)))
    for _ in range(12):
        ready = [s for s in sequences if s.budget > 0]
        run(twins.service, select(ready, 0, COST, memory))
    texts = [list(sequence.tokens) for sequence in sequences]
    for sequence in sequences:
        memory.release(sequence)
    memory.forget_prefixes()
    return texts


def test_how_a_slot_samples_is_written_over_what_it_held(device: torch.device) -> None:
    both = (*PARAMS, SamplingParams(top_p=0.5, min_p=0.1, seed=2**63 + 1, min_tokens=3))
    slots = [Slot(params, (5, 6, 5, 9, 9), prompt_length=3, choice=2) for params in both]
    wanted = options_of(slots, VOCAB, EOS, device)
    found = SamplingOptions.empty(len(slots), VOCAB, 16, 8, device)
    for column in (found.floats, found.ints, found.seen):
        column.fill_(3)
    for index, slot in enumerate(slots):
        params = slot.params
        chosen = Chosen(params, slot.choice, slot.tokens, slot.prompt_length, params.ends(EOS))
        write_slot(found, index, chosen)
    for name in ("floats", "ints", "bias_ids", "biases", "end_ids"):
        assert torch.equal(getattr(found, name), getattr(wanted, name)), name
    assert torch.equal(found.seen[1], wanted.seen[1])  # the only one with penalties
    many = SamplingParams(stop_token_ids=tuple(range(9)))
    with pytest.raises(ValueError, match="stop_token_ids must have at most 8 entries, not 10"):
        write_slot(found, 0, Chosen(many, 0, (5,), 1, frozenset(range(10))))


def tell_openings(step: DeviceStep, told: dict[str, torch.Tensor], all_of: list[VerifySequence]):
    slots = [Slot(s.opened.params, tuple(s.tokens), len(s.opened.prompt), choice=0) for s in all_of]
    options = options_of(slots, VOCAB, EOS, step.tables.device)
    for field in fields(options):
        mine, theirs = getattr(step.options, field.name), getattr(options, field.name)
        mine[:, : theirs.shape[1]].copy_(theirs)
    for slot, sequence in enumerate(all_of):
        told["changed"][slot] = told["active"][slot] = told["speculates"][slot] = 1
        told["length"][slot] = len(sequence.tokens)
        told["limit"][slot] = sequence.longest
        told["node_limit"][slot] = NODES
        told["root_token"][slot] = sequence.tokens[-1]
        told["root_id"][slot] = signed(sequence.tree.root_id)
        blocks = torch.tensor(sequence.blocks, dtype=torch.int32)
        step.tables[slot, : len(blocks)].copy_(blocks)


def tell_guesses(told: dict[str, torch.Tensor], guessed: list) -> None:
    place = 0
    for slot, (parents, tokens, confidences) in enumerate(guessed):
        for parent, token, confidence in zip(parents, tokens, confidences, strict=True):
            told["parent_id"][place], told["token"][place] = signed(parent), token
            told["confidence"][place], told["source"][place] = confidence, int(Source.MODEL)
            place += 1
        told["starts"][slot + 1] = place


def test_steps_on_the_device_commit_what_the_services_commit(twins: Twins) -> None:
    texts = plainly(twins)
    rng, memory = random.Random(4), Reservations(twins.service)
    sequences = list(opened(twins, memory, random.Random(1)))
    limits = StepLimits(len(sequences), CONTEXT, NODES, DEPTH, guesses=64, biases=16, ends=8)
    step = DeviceStep(twins.device._model, limits, VOCAB)
    step.cost.copy_(torch.tensor([COST(n) for n in range(len(step.cost))], dtype=torch.float64))
    ended: set[int] = set()
    accepted = verified = 0
    for turn in range(4):
        told = step.told()
        if turn == 0:
            tell_openings(step, told, sequences)
        guessed = []
        for index, sequence in enumerate(sequences):
            made = ([], [], []) if index in ended else guesses_for(sequence, rng, texts[index])
            guessed.append(made)
            parents, tokens, confidences = (tuple(column) for column in made)
            sources = (Source.MODEL,) * len(tokens)
            root = sequence.tree.root_id
            group = NodeGroup(index, 1, root, True, tokens, parents, confidences, sources)
            sequence.attach(group)
        tell_guesses(told, guessed)
        allowed = 0 if turn == 1 else ALLOWED
        told["allowed"][0] = allowed
        number = step.launch(StepBucket(ALLOWED, filters=turn == 3))
        ready = [sequence for index, sequence in enumerate(sequences) if index not in ended]
        outcomes, _ = run(twins.service, select(ready, allowed, COST, memory))
        found = step.commits(number)
        told_about = found["outcome"][: sum(len(tokens) for _, tokens, _ in guessed)]
        assert set(told_about.tolist()) <= {NEW, KNOWN, FULL}
        by_slot = {outcome.sequence.opened.seq_id: outcome.commit for outcome in outcomes}
        for slot, sequence in enumerate(sequences):
            commit = by_slot.get(slot)
            if commit is None:
                assert not found["path"][slot] and not found["count"][slot]
                continue
            tokens = tuple(found["tokens"][slot, : found["count"][slot]].tolist())
            assert tokens == commit.tokens
            assert found["base"][slot] == commit.position
            assert found["verified"][slot] == commit.verified
            assert bool(found["finish"][slot]) == (commit.finish is not None)
            accepted, verified = accepted + commit.accepted, verified + commit.verified
            if commit.finish is not None:
                ended.add(slot)
                continue
            assert found["hit"][slot] == commit.hit
            held = nodes_of(step._trees, slot, sequence.tree.root_id)
            assert held == nodes_in(sequence.tree)
            assert sequence.tokens == texts[slot][: len(sequence.tokens)]
    assert ended == {0}
    assert accepted > 3 and verified > accepted
    assert (found["base"] > 2).all()


def test_more_nodes_than_the_bucket_holds_are_refused(twins: Twins) -> None:
    step = DeviceStep(twins.device._model, StepLimits(2, CONTEXT, NODES, DEPTH), VOCAB)
    step.told()["allowed"][0] = 5
    with pytest.raises(ValueError, match="allowed nodes must be at most those of the bucket, 4"):
        step.launch(StepBucket(4))
    with pytest.raises(ValueError, match="these at most 16"):
        step.launch(StepBucket(17))
    with pytest.raises(ValueError, match="depth must be from 1 to 64, not 65"):
        replace(step.limits, depth=65)
