"""What ``foredraft bench kernels`` measures and how it judges; the measuring itself needs a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest
import torch

import bench.kernels.cases
import kernels
from bench.kernels.case import OURS, Case, Findings, Prepared, copies_for
from bench.kernels.command import run_case
from bench.kernels.outcome import Outcome, as_json, broken, line, missed
from bench.kernels.registry import CASE_FILES, all_cases
from bench.kernels.shapes import LAYERS, Shape
from bench.kernels.tuning import (
    Timed,
    cuts,
    depths,
    few_heights,
    loads,
    many_heights,
    search,
)
from foredraft.cli.main import main
from kernels.skinny_table import BF16, FP8, W8A16, Launch, Tiling, tiling_for, untuned


def _case(shape: str = "one", **goals) -> Case:
    return Case("some_kernel", shape, 1_000_000, lambda device: _prepared({}), **goals)


def _prepared(findings: Findings) -> Prepared:
    return Prepared({OURS: lambda copy: None}, 1, lambda: findings)


def _outcome(case: Case, times: Mapping[str, float], **findings: bool | float) -> Outcome:
    return Outcome(case, findings, times, {})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_sentence_says_so(capsys: pytest.CaptureFixture[str]):
    assert main(["bench", "kernels"]) != 0
    assert capsys.readouterr().err.splitlines() == [
        "foredraft: bench kernels needs an NVIDIA GPU that torch can use; there is none"
    ]


def test_without_triton_one_sentence_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["bench", "kernels"]) != 0
    assert capsys.readouterr().err.startswith("foredraft: bench kernels needs triton")


def test_a_kernel_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["bench", "kernels", "--only", "lm_head,nothing"])
    assert "must be of best_guesses" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--shape", "700b"], "--shape must be a part of a shape's name, such as 'draft"),
        (["--tune", "fp8", "--only", "lm_head"], "--only must be left out beside --tune"),
        (["--tune", "fp8", "--json", "x.json"], "--json must be left out beside --tune"),
        (["--tune", "fp8", "--shape", "16 rows"], "--shape must be a part of a shape's name"),
    ],
    ids=["no such shape", "tune only", "tune json", "no such shape to tune"],
)
def test_options_that_leave_nothing_are_refused(
    capsys: pytest.CaptureFixture[str], options: list[str], text: str
):
    assert main(["bench", "kernels", *options]) == 2
    assert text in capsys.readouterr().err


def test_every_case_is_of_a_kernel_and_can_be_told_from_the_others():
    cases = all_cases()
    names = [(case.kernel, case.shape) for case in cases]
    assert len(set(names)) == len(names)
    sources = {file.stem for file in Path(kernels.__file__).parent.glob("*.py")}
    assert {case.kernel for case in cases} <= sources
    for case in cases:
        assert case.moved_bytes > 0
        assert all((case.kernel, shape) in names for shape in case.flat)


def test_every_file_of_cases_is_measured():
    files = Path(bench.kernels.cases.__file__).parent.glob("[!_]*.py")
    assert {file.stem for file in files} == set(CASE_FILES)


def test_copies_together_do_not_fit_the_cache():
    assert copies_for(16 << 20) == 16
    assert copies_for(1 << 30) == 2
    assert copies_for(100) == 256


@pytest.mark.parametrize("kind", [FP8, W8A16, BF16])
def test_tuning_tries_what_can_be_launched(kind: str):
    for shape in LAYERS:
        tried = cuts(kind, shape)
        assert len(set(tried)) == len(tried) >= 2
        rule, table = untuned(kind, shape.n, shape.k), tiling_for(kind, shape.n, shape.k)
        pairs = [(cut.block_k, cut.splits) for cut in tried]
        assert {(rule.block_k, rule.splits), (table.block_k, table.splits)} <= set(pairs)
        assert all(shape.k // cut.splits >= 256 for cut in tried)
    for start in (*few_heights(), *many_heights()):
        for launches in (depths(start), loads(start)):
            assert launches[0] == start and len(set(launches)) == len(launches)
            assert all(launch.block_n in (64, 128, 256) for launch in launches)
            assert all(launch.warps in (4, 8) and launch.ahead % 16 == 0 for launch in launches)


class ScriptedClock:
    """Slices cost few rows and help many; a launch is as fast as it is deep."""

    def compile(self, tilings: Iterable[Tiling], rows: Sequence[int]) -> None:
        self.compiled = list(tilings)

    def best(self, cut: Tiling, launches: Iterable[Launch], rows: Sequence[int]) -> Timed:
        cost = 10.0 + cut.splits if rows[0] <= 32 else 20.0 - cut.splits
        return min(
            (Timed(launch, cost / launch.stages) for launch in launches), key=lambda one: one.us
        )


def test_tuning_weighs_few_rows_and_many():
    found = search(FP8, Shape("8b", "o", 4096, 4096), ScriptedClock())
    assert found.cut.splits == 1  # of 11^2 * 19, 12^2 * 18, 13^2 * 17, ..
    assert found.tiling.few.stages == found.tiling.many.stages == 8
    assert eval(repr(found.tiling)) == found.tiling  # what is printed is what goes into the table


def test_goals_are_ratios_of_times_and_shares_of_bandwidth():
    base = _outcome(_case("base"), {OURS: 10.0})
    goals = {"library": 1.2, "absent": 5.0}
    case = _case(goals=goals, of_copy=0.5, at_most_us=15.0, flat={"base": 1.5})
    good = _outcome(case, {OURS: 10.0, "library": 12.0})
    assert missed(good, [base, good], copy_gb_s=200) == []
    slow = _outcome(case, {OURS: 16.0, "library": 12.0})
    assert missed(slow, [base, slow], copy_gb_s=200) == [
        "0.75 of 1.20 x library",
        "31% of 50% of copy bandwidth",
        "16.0 us, at most 15.0",
        "1.60 x the time of base, at most 1.50",
    ]


def test_a_finding_that_is_false_is_what_is_broken():
    outcome = _outcome(_case(), {OURS: 1.0}, same=True, exact=False, error=0.0)
    assert broken(outcome) == ["exact"]
    row = as_json(outcome, [outcome], copy_gb_s=1000)
    assert row["broken"] == ["exact"] and row["us"] == {OURS: 1.0} and row["of_copy"] == 1.0
    assert line(row) == ("some_kernel, one: 1.00 us, 100% of copy; exact 0; error 0; BROKEN: exact")


def test_a_kernel_that_fails_does_not_stop_the_others():
    def fail(device: torch.device) -> Prepared:
        raise RuntimeError("out of registers\nand more")

    case = Case("some_kernel", "one", 1, fail)
    outcome = run_case(case, torch.device("cpu"), lambda prepared: ({OURS: 1.0}, {}))
    assert broken(outcome) == ["it does not run: out of registers"]
    assert missed(outcome, [outcome], copy_gb_s=1) == []
    assert line(as_json(outcome, [outcome], 1)).endswith(
        "BROKEN: it does not run: out of registers"
    )


def test_a_case_is_checked_and_timed():
    case = Case("some_kernel", "one", 1, lambda device: _prepared({"same": True}))
    outcome = run_case(case, torch.device("cpu"), lambda prepared: ({OURS: 2.0}, {"other": "no"}))
    assert outcome.findings == {"same": True} and outcome.times == {OURS: 2.0}
    assert outcome.faults == {"other": "no"} and broken(outcome) == []
