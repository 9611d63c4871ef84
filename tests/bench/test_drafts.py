"""``foredraft bench drafts`` and ``plots``: options, report, table, pictures; and live services."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.tiny_models import make_tiny_llama

from foredraft.cli.main import main


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With room for a whole alphabet of bytes, so that texts are read as they stand."""
    return make_tiny_llama(tmp_path_factory.mktemp("model") / "tiny", vocab=259, context=512)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    file = tmp_path / "rows.jsonl"
    texts = ["def f(args):\n    return args\n", "x = 1\n" * 3]
    lines = [{"prompt": f"Fix it.\n{text}", "reference": text} for text in texts]
    lines.append({"prompt": "x" * 600, "reference": "x"})
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def run(*arguments: object) -> int:
    try:
        return main(["bench", *map(str, arguments)])
    except SystemExit as error:
        assert isinstance(error.code, int)
        return error.code


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "--workload must be given, or --data, and not both"),
        (("--data", ".", "--workload", "gsm8k=f"), "--workload must be given, or --data"),
        (("--data", "."), "--answers must be given, or --reference, and not both"),
        (("--data", ".", "--reference", "--answers", "f"), "--answers must be given, or"),
        (("--data", ".", "--reference", "--seed", 3), "--seed must be left out with --reference"),
        (("--data", ".", "--reference", "--draft", "d"), "--draft must be left out, or --drafts"),
        (("--data", ".", "--reference", "--live"), "--live must be left out with --reference"),
        (("--workload", "poems=f"), "--workload: must be NAME=FILE, NAME one of spec_bench"),
        (("--workload", "gsm8k"), "--workload: must be NAME=FILE"),
        (("--only", "poems"), "--only: must be of spec_bench, humaneval"),
        (("--drafts", "oracle"), "--drafts: must be of suffix, chain5"),
        (("--data", ".", "--reference", "--drafts", "suffix,tree"), "--draft must be a model"),
        (("--nodes", "8,0"), "--nodes: must be a whole number from 1"),
        (("--thresholds", "0.1,2"), "--thresholds: must be a number from 0 to 1, not 2"),
        (
            ("--data", ".", "--reference", "--thresholds", "auto", "--pass-ms", 3),
            "--pass-ms must be left out with --thresholds auto",
        ),
        (("--data", ".", "--answers", "f", "--temperatures", "-1"), "temperature must be a number"),
        (
            ("--data", ".", "--answers", "f", "--live", "--max-depth", 4),
            "--live must be left out with --min-survival or --max-depth",
        ),
    ],
)
def test_options(
    capsys: pytest.CaptureFixture[str], arguments: tuple[object, ...], text: str
) -> None:
    assert run("drafts", *arguments) == 2
    assert text in capsys.readouterr().err.splitlines()[-1]


def test_a_workload_without_references_is_refused(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"question": "one"}\n')
    assert run("drafts", "--workload", f"gsm8k={file}", "--reference", "--model", model) == 2
    told = "--reference must be left out with workloads without reference answers: gsm8k"
    assert told in capsys.readouterr().err


def test_a_report_its_table_and_its_pictures(
    capsys: pytest.CaptureFixture[str], model: Path, rows: Path, tmp_path: Path
) -> None:
    given = ("--workload", f"code_edit={rows}", "--model", model, "--reference")
    out = tmp_path / "drafts.json"
    grid = ("--nodes", "2,16", "--thresholds", "0.01,0.5,auto", "--row-ms", 0, "--at-once", 1)
    assert run("drafts", *given, *grid, "--json", out) == 0
    report = json.loads(out.read_text())
    small, large = report["cells"]
    assert report["left_out"] == 1  # of the rows: it is longer than the context
    assert [small["nodes"], large["nodes"]] == [2, 16]
    for row in report["cells"]:
        assert (row["workload"], row["group"], row["answers"]) == ("code_edit", "fix", 2)
        assert row["tokens"] == len("def f(args):\n    return args\n") + len("x = 1\n" * 3)
        assert row["tokens_per_step"] == pytest.approx(row["tokens"] / row["steps"], abs=1e-4)
        assert row["verified_per_step"] <= row["nodes"]
        # Steps of 40 ms whose rows are free: as much quicker than plain as there are fewer steps,
        # of which plain decoding has one per token and one per EOS.
        ratio = row["modelled_tokens_per_s"] / row["modelled_plain_tokens_per_s"]
        plain_steps = row["tokens"] + row["answers"]
        assert ratio == pytest.approx(plain_steps / row["steps"], rel=1e-3)
        counts = row["sources"]["suffix"]
        accepted = sum(counts["accepted"])
        # A step brings one token more than its guesses, and each answer ends with an EOS; where
        # that was guessed, nothing comes behind it.
        assert 2 <= accepted + row["steps"] - row["tokens"] <= 4
        assert sum(place["count"] for place in counts["bins"]) == sum(counts["verified"])
    assert small["tokens_per_step"] < large["tokens_per_step"]
    assert [row["min_survival"] for row in report["thresholds"]] == [
        *(0.01, 0.01, 0.5, 0.5),
        *("auto", "auto"),
    ]
    table = capsys.readouterr().out.splitlines()
    assert table[0].split()[:4] == ["workload", "group", "T", "draft"]
    assert len(table) == 3 + 7  # two tables

    assert run("plots", out, "--out", tmp_path / "new") == 0
    names = ("tokens_per_step", "by_depth", "reliability", "thresholds")
    pictures = [tmp_path / "new" / f"drafts_{name}.svg" for name in names]
    assert capsys.readouterr().out.splitlines() == [str(picture) for picture in pictures]
    assert all("<svg" in picture.read_text() for picture in pictures)

    few = ("--nodes", 2, "--at-once", 1, "--jobs", 2)
    assert run("drafts", *given, *few, "--json", out) == 0
    [beside] = json.loads(out.read_text())["cells"]
    assert [beside[name] for name in ("tokens", "steps", "sources")] == [
        small[name] for name in ("tokens", "steps", "sources")
    ]
    capsys.readouterr()
    assert run("plots", out, "--out", tmp_path / "fewer") == 0
    assert len(capsys.readouterr().out.splitlines()) == len(pictures) - 1
    assert len({row["modelled_plain_tokens_per_s"] for row in report["thresholds"]}) == 1


@pytest.mark.parametrize("content", ["text", "[]", '{"benchmark": "wire"}'])
def test_plots_of_something_else_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str
) -> None:
    file = tmp_path / "wire.json"
    file.write_text(content)
    assert run("plots", file) == 2
    told = "FILE must be what foredraft bench drafts|step --json has written: wire.json is not"
    assert told in capsys.readouterr().err


@pytest.mark.slow  # three processes, three times
def test_live_services_bring_what_replays_say(model: Path, rows: Path, tmp_path: Path) -> None:
    """The draft is the target itself. Answers are recorded once, and none is asked again."""
    answers, out = tmp_path / "answers.jsonl", tmp_path / "drafts.json"
    given: list[object] = ["--workload", f"code_edit={rows}", "--model", model, "--draft", model]
    given += ["--answers", answers, "--temperatures", 1, "--max-tokens", 80, "--seed", 3]
    given += ["--dtype", "float32", "--drafts", "suffix,chain5,tree", "--nodes", 16]
    given += ["--at-once", 1, "--json", out]
    assert run("drafts", *given, "--limit", 1) == 0
    first = answers.read_text()
    assert run("drafts", *given, "--live") == 0
    assert answers.read_text().startswith(first) and len(answers.read_text().splitlines()) == 2
    report: dict[str, Any] = json.loads(out.read_text())
    assert [row["draft"] for row in report["live"]] == ["suffix", "tree"]
    suffix, tree = report["live"]
    for row in (suffix, tree):
        assert row["same_ids"] == row["answers"] == 2
    # Not equal: the services learn from the easy text, too, with which they are waited for, and
    # weigh the passes of a draft that is as slow as its target.
    assert suffix["tokens_per_step"] == pytest.approx(suffix["replayed_tokens_per_step"], rel=0.2)
    assert 1.5 < tree["tokens_per_step"] < 1.2 * tree["replayed_tokens_per_step"]
