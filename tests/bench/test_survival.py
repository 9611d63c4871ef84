"""``foredraft bench survival``: its options, what it reads and counts, and all of it, small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import survival
from bench.gauges import FREE_BLOCKS, Reading
from bench.strokes import STROKES, _pause_end
from foredraft.cli.main import main

METRICS = """\
# TYPE foredraft_workers_up gauge
foredraft_workers_up{kind="verify"} 0.0
foredraft_workers_up{kind="draft"} 2.0
# TYPE foredraft_accepted_tokens counter
foredraft_accepted_tokens_total{depth="1"} 30.0
foredraft_accepted_tokens_total{depth="2"} 12.0
# TYPE foredraft_free_kv_blocks gauge
foredraft_free_kv_blocks{worker="0"} 7.0
"""


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("--cancels", 0, "argument --cancels: must be a whole number from 1"),
        ("--engine", "fast", "argument --engine: must be STEP_MS,DRAFT_MS[,TOP1]"),
        ("--json", "/proc", "--json must be a file that can be written"),
    ],
)
def test_options(capsys: pytest.CaptureFixture[str], option: str, value: object, text: str) -> None:
    try:
        code = main(["bench", "survival", option, str(value)])
    except SystemExit as error:
        assert isinstance(error.code, int)
        code = error.code
    assert code == 2 and text in capsys.readouterr().err.splitlines()[-1]


def test_samples_are_told_apart_by_their_labels() -> None:
    reading = Reading(METRICS)
    assert (reading.up("verify"), reading.up("draft")) == (0.0, 2.0)
    assert (reading.accepted, reading.sum(FREE_BLOCKS)) == (42.0, 7.0)


def test_an_answer_goes_on_after_its_longest_silence() -> None:
    assert _pause_end([10.0, 10.1, 13.5, 13.6, 14.6]) == 13.5
    assert _pause_end([10.0]) == 10.0


@pytest.mark.parametrize(
    ("failed", "differing", "not_back", "sound"),
    [(0, 0, 0, True), (1, 0, 0, False), (0, 1, 0, False), (0, 0, 1, False)],
)
def test_only_lost_answers_and_lost_memory_count(
    failed: int, differing: int, not_back: int, sound: bool
) -> None:
    strokes = {"a": {"failed": 0, "differing": 0}, "b": {"failed": failed, "differing": differing}}
    assert survival._sound({"strokes": strokes, "cancels": {"not_back": not_back}}) == sound


@pytest.mark.slow
def test_the_whole(tmp_path: Path) -> None:
    file = tmp_path / "survival.json"
    small = ["--engine", "4,0.3", "--tokens", "600", "--cancels", "20", "--rounds", "1"]
    assert main(["bench", "survival", *small, "--requests", "3", "--json", str(file)]) == 0
    report = json.loads(file.read_text("utf-8"))
    assert list(report["strokes"]) == [stroke.name for stroke in STROKES]
    for stroke in report["strokes"].values():
        times = [spread["worst"] for spread in stroke["seconds"].values()]
        assert len(times) == 4 and min(times) > 0.0
        assert stroke["failed"] == stroke["differing"] == 0
    cancels = report["cancels"]
    assert cancels["given_up"] == 20 and cancels["free_again_s"]["worst"] > 0.0
