"""The default model says what transformers says, token by token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.drafters import half_right
from support.verify_driver import VerifyDriver
from transformers import AutoModelForCausalLM

from foredraft.config import EngineConfig
from foredraft.engine.runner import ModelRunner
from foredraft.params import FinishReason

FIXTURE = Path(__file__).parents[1] / "fixtures" / "spec_bench_greedy.json"
MADE_AGAIN = (1, 3, 13, 36)  # short prompts of different groups, one that ends by itself


@pytest.fixture(scope="module")
def reference() -> list[dict[str, Any]]:
    prompts: list[dict[str, Any]] = json.loads(FIXTURE.read_text(encoding="utf-8"))["prompts"]
    return prompts


@pytest.mark.parametrize("every", [13, pytest.param(1, marks=pytest.mark.slow)])
def test_greedy_answers_equal_transformers(
    default_model: Path, reference: list[dict[str, Any]], every: int
) -> None:
    """Every thirteenth prompt, or all, in one batch of unequal lengths, with half-right guesses."""
    reference = reference[::every]
    settings = EngineConfig(default_model, dtype="float32", threads=2, kv_memory_mib=1500)
    runner = ModelRunner.load(settings)
    with VerifyDriver(runner) as driver:
        for index, row in enumerate(reference):
            text = [*row["prompt_ids"], *row["token_ids"]]
            guesses = half_right(text, 4, runner.info.vocab_size, seed=index)
            driver.open(index, row["prompt_ids"], guesses, max_tokens=64)
        answers = driver.finish()
    for index, row in enumerate(reference):
        assert answers[index].tokens == row["token_ids"], row["question_id"]
        assert answers[index].finish is FinishReason[row["finish_reason"].upper()]
    steps = sum(len(answer.commits) for answer in answers.values())
    assert steps < sum(len(row["token_ids"]) for row in reference)


@pytest.mark.slow
def test_the_fixture_is_what_transformers_says(
    default_model: Path, reference: list[dict[str, Any]]
) -> None:
    model = AutoModelForCausalLM.from_pretrained(default_model, dtype=torch.float32)
    for index in MADE_AGAIN:
        row = reference[index]
        prompt = torch.tensor([row["prompt_ids"]])
        output = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=64
        )
        ids = output[0, prompt.shape[1] :].tolist()
        if ids[-1] == model.generation_config.eos_token_id:
            ids.pop()
        assert ids == row["token_ids"], row["question_id"]
