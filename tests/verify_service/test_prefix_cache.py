"""The prefix cache: the same bits as an empty one, never a guess inside, gone when memory is."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from support.drafters import half_right
from support.dtypes import TARGET_DTYPES
from support.tiny_models import make_tiny_llama
from support.verify_driver import VerifyDriver

from foredraft.config import EngineConfig
from foredraft.engine.kv import BlockPool
from foredraft.engine.runner import Runner, load_runner
from verify_service.prefix_cache import PrefixCache

VOCAB, CONTEXT = 128, 512
PROMPT = random.Random(7).choices(range(3, VOCAB), k=200)


@pytest.fixture(scope="module", params=TARGET_DTYPES)
def runner(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runner]:
    model = make_tiny_llama(tmp_path_factory.mktemp("model"), vocab=VOCAB, context=CONTEXT)
    settings = EngineConfig(model, dtype=request.param, threads=1, kv_memory_mib=2)
    runner = load_runner(settings)
    runner.chunk = 64  # also on a GPU
    yield runner
    assert runner.kv.free_blocks == runner.kv.total_blocks


def test_a_known_beginning_is_not_computed_again_and_changes_nothing(runner: Runner) -> None:
    """The second prompt goes on differently, inside a chunk; log-probabilities show the bits."""
    other = [*PROMPT[:150], *random.Random(8).choices(range(3, VOCAB), k=40)]
    options = {"max_tokens": 12, "ignore_eos": True, "logprobs": 3}
    with VerifyDriver(runner) as driver:
        driver.open(0, other, **options)
        alone = driver.finish()[0]
    with VerifyDriver(runner) as driver:
        driver.open(0, PROMPT, max_tokens=12, ignore_eos=True)
        driver.finish()
        driver.open(1, other, **options)
        again = driver.finish()[1]
    assert [commit.cached for commit in alone.commits] == [0] * 12
    assert [commit.cached for commit in again.commits] == [128] + [0] * 11
    assert again.tokens == alone.tokens
    assert [c.logprobs for c in again.commits] == [c.logprobs for c in alone.commits]


def test_what_was_decoded_or_guessed_is_never_reused(runner: Runner) -> None:
    """A text goes on over the edge of a chunk with rejected guesses; a prompt repeats all of it."""
    options = {"max_tokens": 80, "ignore_eos": True}
    with VerifyDriver(runner) as driver:
        driver.open(0, PROMPT, **options)
        said = driver.finish()[0].tokens
    repeated = [*PROMPT, *said]
    with VerifyDriver(runner) as driver:
        driver.open(0, repeated, max_tokens=8, ignore_eos=True)
        expected = driver.finish()[0].tokens
    with VerifyDriver(runner) as driver:
        driver.open(0, PROMPT, half_right(repeated, 5, VOCAB), **options)
        assert driver.finish()[0].tokens == said
        driver.open(1, repeated, max_tokens=8, ignore_eos=True)
        answer = driver.finish()[1]
    assert answer.commits[0].cached == 192  # of the prompt; not the 88 tokens behind it
    assert answer.tokens == expected


def test_the_cache_gives_way(runner: Runner) -> None:
    """Memory for one sequence only: every request runs, whatever was kept before."""
    need = runner.kv.blocks_for(320)
    taken = runner.kv.allocate(runner.kv.free_blocks - need)
    with VerifyDriver(runner) as driver:
        for index in range(3):
            prompt = random.Random(index).choices(range(3, VOCAB), k=200)
            driver.open(index, prompt, max_tokens=100, ignore_eos=True)
        answers = driver.finish()
        assert driver.scheduler.reservations.free_blocks == need
    assert [len(answer.tokens) for answer in answers.values()] == [100] * 3
    runner.kv.free(taken)


def test_the_least_recently_used_chunk_goes_first() -> None:
    pool = BlockPool(16)  # room for two chunks of 64 in the cache
    cache = PrefixCache(pool, 64, 0.5)
    texts = [[number] * 65 for number in range(3)]
    kept = [pool.allocate(5) for _ in range(2)]
    for text, blocks in zip(texts, kept, strict=False):
        pool.free(cache.adopt(text, blocks))
    assert cache.match(texts[0]) == kept[0][:4]
    newest = pool.allocate(5)
    pool.free(cache.adopt(texts[2], newest))
    assert cache.match(texts[1]) == []
    assert cache.match(texts[0]) == kept[0][:4]
    assert cache.match(texts[2]) == newest[:4]
    cache.clear()
    assert pool.free_blocks == pool.total_blocks


def test_a_prompt_that_is_known_to_its_end_keeps_its_last_token_to_run() -> None:
    pool = BlockPool(32)
    cache = PrefixCache(pool, 64, 0.5)
    pool.free(cache.adopt([5] * 129, pool.allocate(9)))
    assert len(cache.match([5] * 128)) == 4
    assert len(cache.match([5] * 129)) == 8
    assert cache.blocks == 8
    cache.clear()
