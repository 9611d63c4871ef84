"""The README's tables say what the results say, and no more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.tables import main

README = "before\n<!-- measured: begin -->\nold\n<!-- measured: end -->\nafter\n"


def system(same: int) -> dict[str, float]:
    return {
        "decode_tokens_per_s": 40.0,
        "ratio_to_plain": 1.5,
        "decode_ratio_to_plain": 1.6,
        "total_ratio_to_plain": 1.7,
        "tokens_per_step": 2.0,
        "same_ids_as_plain": same,
    }


def compare(cores: int, same: int) -> dict[str, Any]:
    return {
        "benchmark": "compare",
        "command": "foredraft bench compare",
        "machine": {"processor": "some processor", "cores": cores},
        "versions": {"torch": "2.13"},
        "prompts": "code.jsonl",
        "answers": 10,
        "systems": {
            "plain": system(10),
            "suffix": system(same),
            "transformers x": system(3),
            "llama.cpp y": system(2),
        },
    }


def tables(tmp_path: Path, *reports: dict[str, Any]) -> str:
    for number, report in enumerate(reports):
        (tmp_path / f"{number}.json").write_text(json.dumps(report))
    readme = tmp_path / "README.md"
    readme.write_text(README)
    assert main(["--results", str(tmp_path), "--readme", str(readme)]) == 0
    text = readme.read_text()
    assert text.startswith("before\n<!-- measured: begin -->\n") and text.endswith("\nafter\n")
    assert "old" not in text
    return text


def test_kernels_stand_beside_their_controls(tmp_path: Path) -> None:
    case = {"kernel": "lm_head", "of_copy": 0.91, "broken": []}
    report = {
        "benchmark": "kernels",
        "command": "foredraft bench kernels",
        "machine": {"processor": "some processor", "cores": 2, "gpu": "some GPU"},
        "versions": {"triton": "3.6"},
        "cases": [
            {**case, "shape": "one", "us": {"ours": 10.0, "library": 12.5}},
            {**case, "shape": "two", "us": {"ours": 4.0}, "broken": ["the same bits"]},
            {**case, "shape": "three", "us": {"library": 12.5}},
        ],
    }
    text = tables(tmp_path, report)
    assert "some processor, 2 cores; some GPU; triton 3.6." in text
    assert "| lm_head, one | 10.0 us (91% of copy bandwidth, 1.25 x library) |" in text
    assert "| lm_head, two | 4.0 us (91% of copy bandwidth); wrong: the same bits |" in text
    assert "| lm_head, three | does not run |" in text


def test_steps_stand_beside_each_other_by_their_guesses(tmp_path: Path) -> None:
    row = {"sequences": 1, "context": 2048, "fits": True}
    report = {
        "benchmark": "step",
        "command": "foredraft bench step",
        "machine": {"processor": "some processor", "cores": 2, "gpu": "some GPU"},
        "versions": {},
        "layers": 32,
        "hidden": 4096,
        "dtype": "fp8",
        "steps": [
            {**row, "nodes": 0, "ms": 2.456, "of_floor": 0.75},
            {**row, "nodes": 8, "ms": 2.5, "of_floor": 0.73},
            {**row, "sequences": 256, "nodes": 0, "fits": False},
        ],
    }
    place = "a step of 32 layers of 4096 in fp8, 1 sequences, 2048 committed tokens each"
    found = "2.46 / 2.50 ms (75% / 73% of the memory's speed)"
    text = tables(tmp_path, report)
    assert f"| {place}; 0 / 8 guesses in all | {found} | `foredraft bench step` |" in text
    assert "256" not in text


def test_first_tokens_of_prompts_and_the_longest_gap_are_told(tmp_path: Path) -> None:
    report = {
        "benchmark": "prompts",
        "command": "foredraft bench prompts",
        "machine": {"processor": "some processor", "cores": 2, "gpu": "some GPU"},
        "versions": {},
        "layers": 32,
        "hidden": 4096,
        "dtype": "fp8",
        "sequences": 3,
        "prompt": 500,
        "first_token_ms": [250.0, 500.0, 1004.0],
        "step_ms": 2.5,
        "longest_gap_steps": 1.4,
    }
    text = tables(tmp_path, report)
    place = "3 prompts of 500 tokens at once, 32 layers of 4096 in fp8"
    found = "first tokens after 0.25 to 1.00 s, then steps of 2.50 ms, at most 1.40 of them without"
    assert f"| {place} | {found} a token | `foredraft bench prompts` |" in text


def test_same_ids_are_counted_over_our_own_systems(tmp_path: Path) -> None:
    text = tables(tmp_path, compare(2, same=10), compare(2, same=9))
    assert "19 of our 20 answers with guesses have the same ids" in text


def test_a_machine_is_named_once_and_every_machine_is(tmp_path: Path) -> None:
    text = tables(tmp_path, compare(2, 10), compare(4, 10), compare(2, 10))
    one, _, other = text.partition("some processor, 4 cores; torch 2.13.")
    assert one.count("some processor, 2 cores; torch 2.13.") == 1
    assert one.count("| plain, ") == 2 and other.count("| plain, ") == 1


def test_without_answers_there_is_no_sentence_about_them(tmp_path: Path) -> None:
    wire = {"benchmark": "wire", "sequences": 32, "nodes_per_sequence": 8}
    wire |= {"p50_ms": 1.0, "p99_ms": 2.0}
    report = compare(2, 0) | wire
    assert "same ids" not in tables(tmp_path, report)


def test_without_results_the_tables_say_so(tmp_path: Path) -> None:
    assert "Nothing was measured yet." in tables(tmp_path)


def test_schedules_stand_beside_each_other(tmp_path: Path) -> None:
    speeds = [
        {
            "case": {"step_ms": 17.5, "draft_ms": 0.3, "acceptance": 0.754},
            "schedule": schedule,
            "requests": requests,
            "speculating": 100.4,
            "ratio": 1.25,
        }
        for requests in (1, 8)
        for schedule in ("auto", "free")
    ]
    report = compare(2, 10) | {"benchmark": "policy", "speeds": speeds}
    written = tables(tmp_path, report)
    found = "100 / 100 tokens/s (1.25 / 1.25 x plain)"
    assert f"| auto {found}; free {found} |" in written
    assert "step 17.5 ms, draft 0.3 ms, best guess right 75.4%; 1 / 8 at once" in written


def test_what_a_gateway_carries(tmp_path: Path) -> None:
    off = {"median": 2600.0, "off_p50": 30.4, "off_p99": 210.6}
    row = {"tokens_per_s": 4321.2, "traced_ratio": 0.9812, "forward_us": off}
    doors = {"grpc": row, "http": row | {"forward_us": {}}}
    report = compare(2, 10) | {
        "benchmark": "gateway",
        "doors": doors,
        "clients": 32,
        "step_ms": 2.5,
    }
    written = tables(tmp_path, report)
    assert "one gateway, grpc, 32 streaming clients, steps of 2.5 ms without guesses" in written
    assert "| 4321 tokens/s, traced 0.981x; passes off by 30 us (p50), 211 us (p99) |" in written
    assert "| 4321 tokens/s, traced 0.981x |" in written


def test_what_survived_is_told_with_its_times(tmp_path: Path) -> None:
    spread = {"median": 1.25, "worst": 2.5}
    report = {
        **compare(2, 10),
        "benchmark": "survival",
        "requests": 8,
        "step_ms": 17.5,
        "strokes": {"worker killed": {"seconds": {"back": spread}, "failed": 0, "differing": 1}},
        "cancels": {"given_up": 600, "free_again_s": spread},
    }
    text = tables(tmp_path, report)
    told = "back after 1.25 s (2.50 s); 0 failed, 1 with other ids"
    assert f"| worker killed, 8 answers, steps of 17.5 ms | {told} |" in text
    assert (
        "| 600 requests given up at random stages | all is free again after 1.25 s (2.50 s) |"
        in text
    )


def test_drafts_are_listed_by_group_of_answers(tmp_path: Path) -> None:
    def cell(group: str, draft: str, nodes: int, found: float) -> dict[str, Any]:
        place = {"workload": "code_edit", "group": group, "temperature": 0.0}
        return place | {"draft": draft, "nodes": nodes, "tokens_per_step": found}

    report = {
        "benchmark": "drafts",
        "command": "foredraft bench drafts",
        "machine": {"processor": "some processor", "cores": 2},
        "versions": {"torch": "2.13"},
        "answers": "reference",
        "cells": [
            cell("fix", "suffix", 8, 5.334),
            cell("fix", "suffix", 24, 8.165),
            cell("fix", "tree", 8, 4.0),
            cell("rename", "suffix", 8, 7.0),
        ],
    }
    text = tables(tmp_path, report)
    told = "suffix 5.33 / 8.16 tokens/step (8 / 24 nodes); tree 4.00 tokens/step (8 nodes)"
    assert f"| reference answers, code_edit fix, T = 0 | {told} |" in text
    assert text.count("| reference answers") == 2

    found = {("both", "auto"): 41.26, ("both", 0.05): 40.0, ("both", 0.1): 42.0}
    found |= {("suffix", "auto"): 31.0, ("suffix", 0.05): 31.0}
    plain = {"modelled_plain_tokens_per_s": 24.0}
    report |= {"step_ms": 40.0, "row_ms": 1.5, "at_once": 8} | {
        "thresholds": [
            cell("fix", draft, 24, 4.0)
            | plain
            | {"min_survival": survival, "modelled_tokens_per_s": speed}
            for (draft, survival), speed in found.items()
        ]
    }
    text = tables(tmp_path, report)
    where = "code_edit fix, T = 0, 24 nodes, steps of 40 + 1.5 ms a row, 8 at once"
    both = "both 41.3 (fixed at 0.1: 42.0)"
    suffix = "suffix 31.0 (fixed at 0.05: 31.0)"
    assert f"| modelled speed, {where} | plain 24.0 tokens/s; {both}; {suffix} |" in text
    assert "| reference answers" not in text
