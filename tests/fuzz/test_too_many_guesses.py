"""A drafter that sends more guesses than the verifier allows: they are cut to what is allowed."""

from __future__ import annotations

import pytest
from support.drafters import prophet
from support.tiny_models import make_tiny_llama
from support.verify_driver import VerifyDriver

from foredraft.config import EngineConfig
from foredraft.engine.runner import ModelRunner

SENT, ALLOWED, TOKENS = 56, 8, 64
PROMPT = list(range(5, 20))


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    model = make_tiny_llama(tmp_path_factory.mktemp("guesses") / "tiny")
    return ModelRunner.load(EngineConfig(model, "float32", kv_memory_mib=4))


def test_only_the_allowed_number_is_verified(runner: ModelRunner) -> None:
    with VerifyDriver(runner, max_nodes=ALLOWED) as driver:
        driver.open(0, PROMPT, max_tokens=TOKENS, ignore_eos=True)
        plain = driver.finish()[0].tokens
        guesses = prophet([*PROMPT, *plain], SENT)
        assert len(guesses(PROMPT)[0]) == SENT
        driver.open(1, PROMPT, guesses, max_tokens=TOKENS, ignore_eos=True)
        driver.open(2, PROMPT, max_tokens=TOKENS, ignore_eos=True)
        answers = driver.finish()
    assert answers[1].tokens == answers[2].tokens == plain
    assert answers[1].error is None
    assert max(commit.verified for commit in answers[1].commits) == ALLOWED
    assert len(answers[1].commits) < len(answers[2].commits) == TOKENS
