"""Whole steps on a GPU: what is planned and told, and what is refused where there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.report import write_report
from bench.step.cell import Cell, cells_of
from bench.step.command import HEADING, described, line
from bench.step.figures import flatness
from bench.step.profile import kernel_table, profile_lines, spans_of
from bench.step.random_weights import RandomWeights, random_config
from foredraft.cli.main import main
from foredraft.engine.fp8.reference_operations import ReferenceOperations
from foredraft.engine.fp8.weights import quantise
from foredraft.models.widen.shape import Shape

TINY = Shape(layers=2, hidden=32, intermediate=64, heads=2, kv_heads=1, head_dim=16)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    try:
        code = main(["bench", "step", *arguments])
    except SystemExit as stopped:
        code = int(str(stopped.code))
    return code, capsys.readouterr().err


def test_cells_are_all_that_trees_hold() -> None:
    cells = cells_of([1, 16], [0, 64, 100], [2048])
    assert [(cell.sequences, cell.nodes) for cell in cells] == [
        (1, 0), (1, 64), (16, 0), (16, 64), (16, 100),
    ]  # fmt: skip
    assert cells[-1].shares == [7] * 4 + [6] * 12


def test_the_floor_is_what_a_step_has_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.step.random_weights._VOCABULARY", 40)
    config = random_config(TINY, context=100)
    device = torch.device("cpu")
    weights = quantise(RandomWeights(config, device), config, 40, device, ReferenceOperations())
    outputs = 64 + 32 + 128 + 32
    matrices = 64 * 32 + 32 * 32 + 128 * 32 + 32 * 64 + 4 * outputs
    entry = 2 * 2 * (16 + 1)  # two layers, keys and values, an exponent beside each
    assert Cell(3, 0, 100).moved_bytes(weights) == 2 * 40 * 32 + 2 * matrices + 300 * entry


def test_rows_of_the_table_and_of_the_report() -> None:
    row = described(Cell(1, 8, 2048), (2.5, 2.4), 2.0)
    assert row == json.loads(json.dumps(row))
    assert (row["ms"], row["busy_ms"], row["idle"], row["of_floor"]) == (2.5, 2.4, 0.04, 0.8)
    assert line(row).split() == ["1", "8", "2048", "2.500", "4.0%", "80.0%"]
    too_large = described(Cell(64, 8, 32768), None, 0.0)
    assert not too_large["fits"] and line(too_large).endswith("does not fit")
    assert len(HEADING.split()) == 7  # "of floor" is one column


def test_a_report_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Flatness is that of the same sequences and context; what did not fit is left out."""
    rows = [
        described(Cell(1, nodes, context), (ms, ms), 1.5)
        for nodes, context, ms in ((0, 2048, 2.0), (7, 2048, 2.1), (0, 8192, 4.0), (7, 8192, 5.0))
    ]
    rows.append(described(Cell(64, 0, 2048), None, 0.0))
    assert flatness(rows[:4]) == {
        (1, 2048): [(1, 1.0), (8, 1.05)],
        (1, 8192): [(1, 1.0), (8, 1.25)],
    }
    write_report(tmp_path / "llama.json", "step", [], {"steps": rows})
    assert main(["bench", "plots", str(tmp_path / "llama.json"), "--out", str(tmp_path)]) == 0
    drawn = capsys.readouterr().out.split()
    assert [Path(file).name for file in drawn] == ["llama_flatness.svg", "llama_context.svg"]
    assert all(Path(file).stat().st_size > 1000 for file in drawn)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--shape", "llama-9b"], "--shape: must be llama-8b, llama-70b, or SIZE=N"),
        (["--shape", "llama-8b", "--sequences", "0"], "--sequences: must be a whole number from 1"),
        (["--shape", "llama-8b", "--nodes", "8,x"], "--nodes: must be a whole number from 0"),
        (["--shape", "llama-8b", "--contexts", ""], "--contexts: must be a whole number from 1"),
        ([], "required: --shape"),
    ],
    ids=["shape", "sequences", "nodes", "contexts", "nothing"],
)
def test_wrong_options_are_named(
    capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    code, error = run(capsys, *arguments)
    assert code == 2 and told in error


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_sentence_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    code, error = run(capsys, "--shape", "llama-8b")
    assert code == 1
    assert error == "foredraft: bench step needs an NVIDIA GPU that torch can use; there is none\n"


def test_random_weights_need_a_whole_shape() -> None:
    with pytest.raises(ValueError, match="intermediate, heads lack"):
        random_config(Shape(layers=2, hidden=32, kv_heads=1, head_dim=16), 10)


def test_kernels_add_up_to_the_step_though_they_overlap() -> None:
    def event(name: str, start: float, end: float, *grid: int) -> dict[str, Any]:
        return {
            "cat": "kernel",
            "name": name,
            "ts": start,
            "dur": end - start,
            "args": {"grid": grid},
        }

    events = [
        event("skinny", 0, 10, 96, 2, 1),
        event("_norm", 6, 12, 1, 1, 1),  # in before the product has ended
        event("void at::native::index<float>(int)", 13, 14, 2, 1, 1),
        {"cat": "cpu_op", "name": "index", "ts": 0, "dur": 99, "args": {}},
        event("skinny", 14, 30, 64, 4, 1),
        event("skinny", 30, 40, 96, 2, 1),
    ]
    rows = kernel_table(spans_of(events), steps=2)
    assert [(row["kernel"], row["added_us"]) for row in rows] == [
        ("skinny 96x2x1", 10.0), ("skinny 64x4x1", 8.0), ("_norm 1x1x1", 1.0), ("index 2x1x1", 1.0),
    ]  # fmt: skip
    assert sum(row["added_us"] for row in rows) == 40 / 2
    assert rows[2]["us"] == 6.0 and rows[0]["launches"] == 1.0
    assert abs(sum(row["share"] for row in rows) - 1) < 1e-3
    assert len(profile_lines(rows)) == len(rows)
