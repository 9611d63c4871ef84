"""Shares of a request's time, from spans with known times."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from foredraft.cli.main import main
from foredraft.telemetry import names
from foredraft.telemetry.drawing import draw
from foredraft.telemetry.page import render_page, ticks
from foredraft.telemetry.records import LinkRecord, Moment, SpanRecord
from foredraft.telemetry.timeline import PARTS, build_timeline

MS = 1_000_000
TRACE = "ab" * 16


def span(name: str, start: int, end: int, role: str = "verify", **more) -> SpanRecord:
    """``start`` and ``end`` in milliseconds."""
    return SpanRecord(name, role, TRACE, f"{name}{start}", "", start * MS, end * MS, **more)


REQUEST = span(
    "chat m",
    0,
    100,
    "gateway",
    attributes={names.OPERATION_NAME: "chat", names.STEPS: 2},
    events=(Moment(names.OPENED, 5 * MS, {}), Moment(names.FINISHED, 95 * MS, {})),
)


def sequence(start: int, end: int, incarnation: int = 1, number: int = 7, **shares) -> SpanRecord:
    which = {names.SEQUENCE: number, names.INCARNATION: incarnation}
    attributes = which | {names.STEPS: 2, names.PREFILL_US: 10_000, names.HELD_US: 5000} | shares
    events = (Moment(names.PREFILLED, (start + 12) * MS, {}),)
    made = span(names.VERIFY_SEQUENCE, start, end, attributes=attributes, events=events)
    return replace(made, parent_id=REQUEST.span_id)


def step(start: int, end: int, held: int = 0) -> SpanRecord:
    link = LinkRecord(REQUEST.span_id, {"tokens": 2, "nodes": 3, "accepted": 1})
    attributes = {names.HELD_US: held * 1000}
    return span(names.VERIFY_STEP, start, end, attributes=attributes, links=(link,))


def work(start: int, end: int) -> SpanRecord:
    link = LinkRecord(REQUEST.span_id, {"nodes": 4})
    attributes = {names.SUFFIX_US: 500, names.MODEL_US: 2500}
    return span(names.DRAFT_WORK, start, end, "draft", attributes=attributes, links=(link,))


def milliseconds(timeline) -> dict[str, float]:
    return {row.name: round(row.seconds * 1000, 3) for row in timeline.rows}


SHARES = {names.VERIFY_US: 55_000, names.OTHERS_US: 6000}
SPANS = [sequence(8, 91, **SHARES), step(20, 55, held=5), step(60, 85), work(30, 33), work(62, 65)]


def test_every_part_by_its_own_clock():
    timeline = build_timeline(REQUEST, SPANS)
    assert milliseconds(timeline) == {
        "draft": 6,
        "gateway": 10,
        "hop": 7,
        "prefill": 10,
        "held": 5,
        "verify": 55,
        "others": 6,
        "idle": 7,
    }
    assert timeline.unaccounted == pytest.approx(0, abs=1e-9) and timeline.missing == 0
    bars = {row.name: [(b.start, b.end) for b in row.bars] for row in timeline.rows}
    assert bars["held"] == [(0.020, 0.025)] and bars["verify"] == [(0.025, 0.055), (0.06, 0.085)]
    assert bars["hop"] == [(0.005, 0.008), (0.091, 0.095)]
    assert bars["idle"] == [(0.008, 0.010), (0.055, 0.06), (0.085, 0.091)]


def test_another_machines_clock_changes_no_share():
    hours = 3_600_000
    away = [
        replace(
            s,
            start=s.start + hours * MS,
            end=s.end + hours * MS,
            events=tuple(replace(e, at=e.at + hours * MS) for e in s.events),
        )
        for s in SPANS
        if s.role == "verify"
    ]
    there, here = build_timeline(REQUEST, away), build_timeline(REQUEST, SPANS)
    assert {**milliseconds(there), "draft": 6} == milliseconds(here)
    assert all(0 <= bar.start <= bar.end <= 0.1 for row in there.rows for bar in row.bars)


def test_what_no_span_explains_is_unaccounted():
    lost = build_timeline(REQUEST, [])
    assert lost.unaccounted == pytest.approx(0.09)
    resumed = build_timeline(REQUEST, [sequence(8, 30), sequence(60, 91, 2)])
    assert milliseconds(resumed)["hop"] == 0
    assert resumed.unaccounted == pytest.approx(0.1 - 0.01 - 0.022 - 0.031)
    assert "unaccounted" in draw(lost, 100) and "90.0 ms" in draw(lost, 100)


def with_silences(*silences: tuple[int, int, int]) -> SpanRecord:
    """``silences`` begin after a step of an incarnation and end with the next one's first.

    Of a target's time until then 6 ms were verifying, 2 ms holding and 4 ms something else.
    """
    heard = {names.HEARD_VERIFY_US: 6000, names.HEARD_HELD_US: 2000, names.HEARD_WAIT_US: 4000}
    events = [
        Moment(
            names.SILENCE,
            start * MS,
            {names.HEARD_INCARNATION: incarnation, names.HEARD_STEPS: 3}
            | {names.SILENCE_US: (end - start) * 1000}
            | heard,
        )
        for incarnation, start, end in silences
    ]
    return replace(REQUEST, events=(*REQUEST.events, *events))


def bars(timeline, name: str) -> list[tuple[float, float]]:
    row = next(row for row in timeline.rows if row.name == name)
    return [(round(b.start * 1000, 3), round(b.end * 1000, 3)) for b in row.bars]


def test_a_lost_target_that_told_its_part():
    request = with_silences((1, 28, 72))
    timeline = build_timeline(request, [sequence(8, 30), sequence(60, 91, 2), step(62, 85)])
    shares = milliseconds(timeline)
    assert (shares["lost"], shares["prefill"], shares["held"]) == (37, 20, 10)
    assert "untold" not in shares and timeline.unaccounted == pytest.approx(0)
    assert bars(timeline, "lost") == [(30, 60)]


def test_a_killed_target_has_told_its_steps_alone():
    request = with_silences((1, 17, 72))
    timeline = build_timeline(request, [sequence(60, 91, 2, **SHARES), step(10, 14), step(62, 85)])
    shares = milliseconds(timeline)
    assert (shares["lost"], shares["untold"], shares["hop"]) == (47, 4, 0)
    assert (shares["verify"], shares["held"]) == (55 + 6, 5 + 2)
    assert sum(shares[name] for name in PARTS if name in shares) >= 100
    assert timeline.missing == 3 and "3 steps of it are not" in draw(timeline, 100)
    assert bars(timeline, "lost") == [(17, 60)]
    assert bars(timeline, "untold") == [(5, 10), (14, 17)]


def test_a_target_that_never_came_back():
    timeline = build_timeline(with_silences((1, 17, 95)), [step(10, 14)])
    shares = milliseconds(timeline)
    assert (shares["lost"], shares["untold"], shares["hop"]) == (78, 4, 0)
    assert timeline.unaccounted == pytest.approx(0) and bars(timeline, "lost") == [(17, 95)]


def test_what_a_silence_does_not_cover_was_the_way():
    timeline = build_timeline(with_silences((1, 30, 50)), [sequence(8, 30), sequence(60, 91, 2)])
    assert (milliseconds(timeline)["lost"], milliseconds(timeline)["hop"]) == (20, 17)


def test_choices_beside_each_other_count_once():
    """The gateway says which of them was heard last; else it is the one that ended last."""
    choices = [sequence(8, 80, number=6, **SHARES), sequence(9, 91, **SHARES)]
    timeline = build_timeline(REQUEST, choices)
    assert sum(milliseconds(timeline).get(name, 0) for name in PARTS) == pytest.approx(100)
    assert milliseconds(timeline)["hop"] == 8
    heard = {**REQUEST.attributes, names.SEQUENCE: 6}
    assert milliseconds(build_timeline(replace(REQUEST, attributes=heard), choices))["hop"] == 18


def test_many_choices_are_one_line():
    many = {names.CHOICES: 100, "foredraft.finishes.length": 97, "foredraft.finishes.stop": 3}
    request = replace(REQUEST, attributes=REQUEST.attributes | many)
    drawn = draw(build_timeline(request, SPANS), 100)
    assert "100 choices: 97 length, 3 stop\n" in drawn and drawn.count("length") == 1
    assert "the choice that was heard last" in drawn
    one = replace(REQUEST, attributes={**REQUEST.attributes, "foredraft.finishes.stop": 1})
    assert "in 2 steps, stop\n" in draw(build_timeline(one, SPANS), 100)


def test_steps_that_are_not_in_the_file_are_told():
    timeline = build_timeline(REQUEST, SPANS[:2])
    assert timeline.missing == 1 and "1 steps of it are not in the file" in draw(timeline, 100)
    assert not next(row.bars for row in timeline.rows if row.name == "idle")


@pytest.mark.parametrize("columns", [20, 80, 200])
def test_lines_fit_the_terminal(columns):
    lines = draw(build_timeline(REQUEST, SPANS), columns).splitlines()
    drawn = [line for line in lines if "%" in line and "beside" not in line]
    assert len(drawn) == len(PARTS)  # two of them only where a target was lost; and two sums
    assert all(len(line) <= max(columns, 56) for line in drawn)


def test_a_page_escapes_what_it_shows():
    page = render_page(build_timeline(replace(REQUEST, name="<script>x</script>"), SPANS))
    assert "<script>" not in page and "&lt;script&gt;" in page


def test_a_page_says_what_its_rows_and_times_are():
    page = render_page(build_timeline(with_silences((1, 17, 72)), SPANS))
    for name in ("draft", *PARTS):
        if name == "untold":  # its target told its part
            continue
        assert f"<th>{name}</th>" in page and f'swatch {name}"' in page
    assert "the target read the prompt" in page and ">80 ms<" in page and "100 ms<" not in page


@pytest.mark.parametrize("seconds", [0.000_3, 0.004, 0.005, 0.0999, 1.0, 7.3, 99.0, 3600.0])
def test_an_axis_has_few_round_moments(seconds):
    moments = ticks(seconds)
    assert 4 <= len(moments) <= 10 and moments[0] == 0 and moments[-1] < seconds
    assert f"{moments[1]:.0e}"[0] in "125" and moments[1] == pytest.approx(
        float(f"{moments[1]:.0e}")
    )


def test_no_time_has_no_axis():
    assert ticks(0.0) == []
    assert "unaccounted" in render_page(build_timeline(replace(REQUEST, end=REQUEST.start), []))


def written(**more) -> str:
    """A request as a line of a trace file."""
    raw = {
        "name": "chat m",
        "role": "gateway",
        "trace_id": TRACE,
        "span_id": "1" * 16,
        "parent_id": "",
        "start_ns": 0,
        "end_ns": 5 * MS,
        "attributes": {names.OPERATION_NAME: "chat"},
        "events": [],
        "links": [],
    }
    return json.dumps(raw | more)


def test_what_a_file_holds_is_shown_and_not_obeyed(tmp_path: Path, capsys):
    file = tmp_path / "t.jsonl"
    bad = "\x1b]0;owned\x07\n\ud800"
    attributes = {names.OPERATION_NAME: bad, names.ERROR_TYPE: bad, names.STEPS: bad}
    attributes |= {names.FINISHES + bad: bad, names.USAGE_OUTPUT_TOKENS: [bad, 7]}
    line = written(name=bad, role=bad, attributes=attributes)
    for lines in (1, 2):  # one is drawn, several are listed
        file.write_text(f"{line}\n" * lines)
        assert main(["trace", str(file)]) == 0
        shown = capsys.readouterr().out
        assert "owned" in shown
        assert all(character.isprintable() or character == "\n" for character in shown)


@pytest.mark.parametrize(
    "more",
    [
        {"attributes": [names.OPERATION_NAME]},
        {"events": [{"name": "opened", "at_ns": "soon", "attributes": {}}]},
        {"name": 7, "role": None},
        {"start_ns": float("inf")},
    ],
)
def test_what_is_no_span_is_passed_over(more, tmp_path: Path, capsys):
    file = tmp_path / "t.jsonl"
    file.write_text(written(**more) + "\n" + written() + "\n" + "[" * 100_000)
    assert main(["trace", str(file)]) == 0
    assert f"chat m  trace {TRACE}" in capsys.readouterr().out


def test_numbers_that_are_none_count_nothing(tmp_path: Path, capsys):
    file = tmp_path / "t.jsonl"
    attributes = {names.PREFILL_US: "many", names.STEPS: None, names.HELD_US: [1]}
    part = written(name=names.VERIFY_SEQUENCE, parent_id="1" * 16, attributes=attributes)
    file.write_text(f"{part}\n{written()}\n")
    assert main(["trace", str(file)]) == 0
    assert "unaccounted" in capsys.readouterr().out


def test_half_a_line_is_passed_over(tmp_path: Path, capsys):
    file = tmp_path / "t.jsonl"
    line = written()
    file.write_text(line[: len(line) // 2] + "\n" + line + "\n")
    assert main(["trace", str(file)]) == 0
    assert f"chat m  trace {TRACE}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["missing"], "No such file or directory"),
        (["empty"], "has no request"),
        (["empty", "--request", "12"], "has no request of trace 12"),
    ],
)
def test_faults_are_one_line(arguments, fault, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("empty").touch()
    assert main(["trace", *arguments]) == 1
    error = capsys.readouterr().err
    assert fault in error and error.count("\n") == 1
