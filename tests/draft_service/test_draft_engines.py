"""The draft's engines beside the target's, which are the reference: the same guesses."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.tiny_models import make_tiny_llama, make_tiny_model

from draft_service.engine.draft_engine import DraftEngine, Extension, ModelEngine
from draft_service.engine.lean import LeanEngine
from draft_service.engine.load import load_model_engine
from draft_service.engine.rows import rows_of
from draft_service.engine.stand_in import RunnerEngine
from draft_service.identity import read_target
from draft_service.model_drafter import ModelDrafter
from draft_service.model_pass import Evaluation
from draft_service.open_options import Option
from draft_service.sequence import DraftSequence
from foredraft.config import EngineConfig
from foredraft.engine.attention_plan import SequenceRows
from foredraft.engine.model_config import BLOCK_FILE
from foredraft.engine.native.blocks import Blocks
from foredraft.engine.native.four_bits import four_bits
from foredraft.engine.runner import ModelRunner, Runner
from foredraft.params import SamplingParams, Speculation
from foredraft.policy.bucket import model_bucket
from foredraft.policy.calibration import Calibration
from foredraft.wire.messages import Limits, OpenSequence
from kernels.cpu import available

CONTEXT = 320
LIMITS = Limits(max_sequences=8, max_nodes=24, max_depth=8)
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama", "hidden": 96, "heads": 6, "kv_heads": 2},
    "qwen2": {"family": "qwen2", "hidden": 64, "heads": 8, "kv_heads": 1, "tie": False},
    "qwen3": {"family": "qwen3", "hidden": 64, "heads": 8, "kv_heads": 4, "head_dim": 24},
}
PARAMS = (
    SamplingParams(max_tokens=400, ignore_eos=True),
    SamplingParams(max_tokens=400, ignore_eos=True, temperature=0.8, seed=2**40 + 1),
    SamplingParams(max_tokens=400, ignore_eos=True, temperature=1.0, seed=3, top_k=20, top_p=0.9),
    SamplingParams(max_tokens=400, min_tokens=9, repetition_penalty=1.3, logit_bias={7: 3.0}),
)


@pytest.fixture(scope="module", params=SHAPES)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    return make_tiny_model(path, context=CONTEXT, norm_spread=0.3, **SHAPES[request.param])


WAYS = [
    "pieces",
    "static",
    pytest.param("native", marks=pytest.mark.skipif(not available(), reason="no such kernels")),
]


def settings(directory: Path, **fields: Any) -> EngineConfig:
    return EngineConfig(directory, **{"dtype": "float32", "kv_memory_mib": 4} | fields)


def lean(directory: Path, *, static: bool = False, **fields: Any) -> LeanEngine:
    return LeanEngine.load(settings(directory, **fields), read_target(directory), static=static)


def engine_of(way: str, directory: Path) -> ModelEngine:
    if way != "native":
        return lean(directory, static=way == "static")
    from draft_service.engine.native import NativeEngine

    return NativeEngine.load(settings(directory), read_target(directory))


def target_of(way: str, directory: Path) -> Runner:
    """The target's engine with the same weights."""
    if way != "native":
        return ModelRunner.load(settings(directory))
    from foredraft.engine.native.runner import NativeRunner

    return NativeRunner.load(settings(directory))


@dataclass
class Play:
    """Sequences that come, grow, are re-rooted and go; what happens hangs on the seed alone.

    found: for every look the node and its best tokens.
    """

    engine: DraftEngine
    directory: Path
    seed: int
    sequences: dict[int, DraftSequence] = field(default_factory=dict)
    found: list[tuple[int, list[int]]] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    moved: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.target = read_target(self.directory)
        self.model = ModelDrafter(self.engine, self.target)
        inner, extend = self.engine, self.engine.extend

        def noting(batch: list[Extension], meanwhile: Callable[[], None]) -> Any:
            guesses = extend(batch, meanwhile)
            self.chances += [chance for row in guesses.chances for chance in row]
            return guesses

        inner.extend = noting  # type: ignore[method-assign]

    def run(self, steps: int) -> None:
        for step in range(steps):
            if len(self.sequences) < 2 or self.random.random() < 0.1:
                self.open(step)
            for sequence in list(self.sequences.values()):
                for _ in range(self.random.randrange(4)):
                    self.guess(sequence)
            self.evaluate()
            for key in list(self.sequences):
                self.commit(key)
        for key in list(self.sequences):
            self.model.release(self.sequences.pop(key))

    def open(self, number: int) -> None:
        if len(self.sequences) == LIMITS.max_sequences:
            return
        prompt = tuple(self.random.choices(range(3, 128), k=self.random.choice((1, 17, 70))))
        params = PARAMS[number % len(PARAMS)]
        opened = OpenSequence(number, 0, prompt, params, speculation=Speculation.MODEL)
        self.sequences[number] = DraftSequence(1, opened, self.target, LIMITS, Calibration())

    def guess(self, sequence: DraftSequence) -> None:
        """A node below a node that the model has seen, or below the root."""
        places = [sequence.tree.root_id, *(set(sequence.tree.nodes) & sequence.evaluated)]
        parent = self.random.choice(sorted(places))
        option = Option(self.random.randrange(3, 128), model_bucket(0.5, 0))
        sequence.add(sequence.tree.place(parent), option, 0.5)

    def evaluate(self) -> None:
        """The roots and some nodes of most sequences in one pass."""
        batch = []
        for sequence in self.sequences.values():
            if self.random.random() < 0.2 or not self.model.prepare(sequence):
                continue
            while self.model.lags(sequence):
                self.model.catch_up(sequence)
            nodes = (sequence.tree.root_id, *sequence.tree.nodes)
            new = [node for node in nodes if node not in sequence.evaluated]
            if new:
                batch.append(Evaluation(sequence, tuple(new)))
        if batch:
            self.model.evaluate(batch)
        for one in batch:
            for node in one.nodes:
                tokens = [option.token for option in one.sequence.options(node)]
                self.found.append((node, tokens))

    def commit(self, key: int) -> None:
        """Some path of the tree and one token more, or a few that nobody guessed."""
        sequence = self.sequences[key]
        path: list[int] = []
        node = sequence.tree.root_id
        while (children := list(sequence.tree.children(node))) and self.random.random() < 0.8:
            node = self.random.choice(sorted(children))
            path.append(sequence.tree.nodes[node].token)
        extra = self.random.choice((1, 1, 1, 1, 2, 40))
        path += self.random.choices(range(3, 128), k=extra)
        if len(sequence.tokens) + len(path) > 200 or self.random.random() < 0.05:
            self.model.release(self.sequences.pop(key))
            return
        moves = sequence.commit(path)
        self.moved += len(moves)
        self.model.move(sequence, moves)


@pytest.mark.parametrize("way", WAYS)
def test_guesses_are_those_of_the_reference(directory: Path, way: str) -> None:
    """Trees, re-roots after hits and misses, catching up, neighbours, memory used again."""
    target = read_target(directory)
    reference = RunnerEngine(target_of(way, directory), target)
    plays = [Play(engine, directory, seed=1) for engine in (reference, engine_of(way, directory))]
    relocated: list[int] = []
    note_relocations(plays[1].engine, relocated.append)
    for play in plays:
        free = play.engine.pool.free_blocks
        play.run(60)
        assert play.engine.pool.free_blocks == free
    expected, ours = plays
    assert len(ours.found) > 250 and ours.moved > 15 and len(relocated) > 5
    assert ours.found == expected.found
    torch.testing.assert_close(
        torch.tensor(ours.chances), torch.tensor(expected.chances), atol=1e-4, rtol=1e-3
    )


def note_relocations(engine: DraftEngine, note: Callable[[int], None]) -> None:
    relocate = engine.relocate

    def noting(old: list[int], new: list[int]) -> None:
        note(len(old))
        relocate(old, new)

    engine.relocate = noting  # type: ignore[method-assign]


def fed(engine: ModelEngine, tokens: list[int], room: int = 64) -> list[int]:
    blocks = engine.pool.allocate_run(engine.pool.blocks_for(len(tokens) + room))
    assert blocks is not None
    for start in range(0, len(tokens), engine.chunk):
        engine.prefill(blocks, tokens[start : start + engine.chunk], start)
    return blocks


@pytest.mark.parametrize("way", WAYS)
def test_what_others_have_in_memory_is_never_read(tmp_path: Path, way: str) -> None:
    """Neighbours and free memory hold NaN; a pass has rows of two sequences."""
    engine = engine_of(way, make_tiny_llama(tmp_path))
    tokens = random.Random(0).choices(range(3, 128), k=40)
    before, own, other, behind = (fed(engine, tokens[:count]) for count in (5, 39, 20, 5))

    def look() -> list[list[float]]:
        lines = [[40], [40, 41], [42]]
        batch = [
            Extension(own, 39, tokens[39:], [5, 6, 7], lines, [None] * 4),
            Extension(other, 20, [9], [], [], [None]),
        ]
        return engine.extend(batch).chances

    clean = look()
    for blocks in (before, behind):
        engine._memory.entries[..., blocks[0] * 16 : (blocks[-1] + 1) * 16, :] = torch.nan
    engine._memory.entries[..., (own[0] * 16 + 43) : (own[-1] + 1) * 16, :] = torch.nan
    engine._memory.entries[..., (behind[-1] + 1) * 16 :, :] = torch.nan
    assert look() == clean
    engine._memory.entries[..., other[0] * 16, :] = torch.nan
    *kept, lost = look()
    assert kept == clean[:-1] and not any(chance > 0.0 for chance in lost)


def test_moves_of_many_sequences_are_made_before_the_next_pass(tmp_path: Path) -> None:
    """Two moves of one sequence in a row, reads before writes, and a release in between."""
    engine = lean(make_tiny_llama(tmp_path))
    memory = engine._memory
    first, second = (engine.pool.allocate_run(2) for _ in range(2))
    assert first is not None and second is not None
    marks = torch.arange(memory.entries.shape[3], dtype=torch.float32)
    memory.entries.copy_(marks[:, None].expand_as(memory.entries))
    engine.move(first, [(3, 4), (4, 3), (7, 7)])
    engine.move(second, [(5, 1)])
    engine.move(first, [(3, 9)])
    engine.pool.free(second)
    memory.settle()
    start, other = first[0] * 16, second[0] * 16
    held = memory.entries[1, 1, 0, :, 0].tolist()
    assert held[start + 3 : start + 5] == [start + 4, start + 3]
    assert held[start + 9] == start + 4 and held[other + 1] == other + 5


def test_short_shapes_are_made_after_a_pass_over_a_longer_text(tmp_path: Path) -> None:
    """Its row stays where passes find theirs, and tells of slots that a short one has not."""
    sizes = {"layers": 1, "hidden": 16, "heads": 1, "kv_heads": 1}
    engine = lean(make_tiny_llama(tmp_path, context=512, **sizes), static=True)
    engine.chunk = 256  # as on a GPU
    before = engine.pool.free_blocks
    engine.warm_up()
    assert engine.pool.free_blocks == before
    assert engine._memory.entries.isfinite().all()


def test_passes_without_a_fitting_shape_are_made_all_the_same(tmp_path: Path) -> None:
    """More rows, or longer lines, than any fixed shape has."""
    directory = make_tiny_llama(tmp_path, context=256)
    free, static = lean(directory), lean(directory, static=True)
    tokens = random.Random(0).choices(range(3, 128), k=80)
    chain = [list(range(80, 81 + depth)) for depth in range(40)]
    for committed, nodes, lines in ((tokens, [], []), (tokens[70:], tokens[:40], chain)):
        batches = []
        for engine in (free, static):
            blocks = fed(engine, tokens[: 80 - len(committed)], room=128)
            looks = [None] * 3
            batches.append([Extension(blocks, 80 - len(committed), committed, nodes, lines, looks)])
        assert static._static is not None
        assert static._static.shape_of(rows_of(batches[1])) is None
        assert free.extend(batches[0]) == static.extend(batches[1])


def test_a_batch_in_bfloat16_guesses_as_in_float32(tmp_path: Path) -> None:
    """As on a GPU, but for the kernels: most best guesses are the same, whatever the shape."""
    directory = make_tiny_llama(tmp_path)
    tokens = random.Random(1).choices(range(3, 128), k=64)
    best = []
    for dtype, static in (("float32", False), ("bfloat16", False), ("bfloat16", True)):
        engine = lean(directory, static=static, dtype=dtype)
        blocks = fed(engine, [])
        guesses = engine.extend([Extension(blocks, 0, tokens, [], [], [None] * 64)])
        best.append([row[0] for row in guesses.tokens])
    for rounded in best[1:]:
        assert sum(a == b for a, b in zip(best[0], rounded, strict=True)) > 55


@pytest.mark.skipif(not available(), reason="no such kernels")
@pytest.mark.parametrize(
    ("dtype", "hidden", "name"),
    [("auto", 64, "int8"), ("float32", 64, "float32"), ("auto", 48, "float16")],
    ids=["auto", "float32", "no-blocks"],
)
def test_blocks_are_taken_where_they_fit(
    tmp_path: Path, dtype: str, hidden: int, name: str
) -> None:
    """On a CPU, unless another type is asked for; they change few guesses."""
    directory = make_tiny_llama(tmp_path, hidden=hidden, vocab=300)
    tokens = random.Random(0).choices(range(3, 300), k=64)
    engine = load_model_engine(
        settings(directory, dtype=dtype, device="cpu"), read_target(directory)
    )
    assert engine.info.dtype == name
    best = []
    for one in (lean(directory, device="cpu"), engine):
        one.warm_up()
        guesses = one.extend([Extension(fed(one, []), 0, tokens, [], [], [None] * 64)])
        best.append([row[0] for row in guesses.tokens])
    assert sum(a == b for a, b in zip(*best, strict=True)) >= 54


def with_fewer_bits(directory: Path, twin: Path) -> Path:
    """A target that has gates and ups in 4 bits and all else in 8, the head included."""
    shutil.copytree(directory, twin)
    weights, blocks = load_file(directory / "model.safetensors"), {}
    for name, weight in weights.items():
        if weight.dim() < 2:
            continue
        made = Blocks.nearest(weight)
        blocks[f"{name}.levels"] = made.levels
        if "gate" in name or "up_proj" in name:
            rough = four_bits(made.floats())
            assert rough is not None and rough.least is not None
            made, blocks[f"{name}.least"] = rough, rough.least
            blocks[f"{name}.levels"] = made.levels[:, ::2] | made.levels[:, 1::2] << 4
        weights[name], blocks[f"{name}.scales"] = made.floats(), made.scales
    save_file(weights, twin / "model.safetensors", metadata={"format": "pt"})
    save_file(blocks, twin / BLOCK_FILE)
    return twin


@pytest.mark.skipif(not available(), reason="no such kernels")
def test_large_matrices_of_fewer_bits_change_no_best_guess(tmp_path: Path) -> None:
    """The same weights, and every logit by 8 bits: the head's 4 bits are seen in shares alone."""
    sizes: dict[str, Any] = {"layers": 1, "hidden": 512, "vocab": 2056, "context": 64}
    directory = make_tiny_llama(tmp_path / "draft", spread=0.05, **sizes)
    engine = engine_of("native", directory)
    runner = target_of("native", with_fewer_bits(directory, tmp_path / "twin"))
    tokens = random.Random(0).choices(range(3, 2056), k=24)
    for looks in (24, 2):
        guesses = engine.extend([Extension(fed(engine, []), 0, tokens, [], [], [None] * looks)])
        blocks = runner.kv.allocate_run(2)
        assert blocks is not None
        paths = [tuple(range(end)) for end in range(1, 25)]
        logits = runner.forward([SequenceRows(blocks, 0, tokens, paths)])[-looks:]
        assert guesses.tokens == logits.topk(3).indices.tolist()
        shares = logits.softmax(-1).topk(3).values
        torch.testing.assert_close(torch.tensor(guesses.chances), shares, atol=0.03, rtol=0.1)
        assert not torch.equal(torch.tensor(guesses.chances), shares)
