"""Pruning, packing, the loss, the vocabulary and the measures, each by itself."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from support.tiny_models import make_tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from draft_service.training import objective
from draft_service.training.answer_bar import AnswerBar
from draft_service.training.answerer import Answerer
from draft_service.training.answers import Answers
from draft_service.training.batches import Batch, Windows, lay_out_windows, pack, rows_of, to_device
from draft_service.training.decoder import Turn
from draft_service.training.evaluation import Examination, walk
from draft_service.training.learning_rate import learning_rate
from draft_service.training.objective import distillation_loss
from draft_service.training.pair import load_pair, use_device
from draft_service.training.prompt_ids import chat_ids
from draft_service.training.prune import choose_layers, prune
from draft_service.training.settings import TrainSettings, answer_identity, derived_seed
from draft_service.training.target_memory import TargetMemory
from draft_service.training.vocabulary import answer_counts, choose_vocabulary, save_vocabulary
from foredraft.chat_template import ChatTemplate
from foredraft.engine.model_config import BLOCK_FILE
from foredraft.engine.noise import gumbel
from foredraft.params import InvalidField
from foredraft.request import ChatMessage
from gateway.tokenizer import Tokenizer

CPU = torch.device("cpu")
WINDOWS_SEED = 3202145210652285965


def some_answers(count: int = 7, vocabulary: int = 128) -> Answers:
    chance = np.random.default_rng(0)
    lengths = chance.integers(5, 40, count).astype(np.int32)
    return Answers(
        tokens=chance.integers(3, vocabulary, int(lengths.sum())).astype(np.int32),
        lengths=lengths,
        prompt_lengths=chance.integers(1, 5, count).astype(np.int32),
        temperatures=np.zeros(count, np.float32),
        seeds=np.zeros(count, np.int64),
    )


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_pruning_keeps_the_named_layers_bit_for_bit(tmp_path: Path, family: str) -> None:
    directory = make_tiny_model(tmp_path, family, layers=4, tie=family == "llama")
    target: Any = AutoModelForCausalLM.from_pretrained(directory)
    draft = prune(target, (1, 3))
    assert draft.config.num_hidden_layers == 2
    for number, kept in enumerate((1, 3)):
        ours = draft.model.layers[number].state_dict()
        theirs = target.model.layers[kept].state_dict()
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert torch.equal(draft.lm_head.weight, target.lm_head.weight)
    frozen = {name for name, weight in draft.named_parameters() if not weight.requires_grad}
    assert frozen >= {"model.embed_tokens.weight"}
    assert all(name in ("model.embed_tokens.weight", "lm_head.weight") for name in frozen)


def test_with_all_layers_the_draft_is_the_target(tmp_path: Path) -> None:
    pair = load_pair(make_tiny_model(tmp_path, "qwen2", layers=3), (0, 1, 2), CPU, 64)
    windows = lay_out_windows(some_answers(), 64, [[item] for item in range(7)])
    found = Examination(pair, torch.arange(len(pair.head)), windows, batch=3).agreement()
    assert (found.top1, found.top4, found.coupled1, found.coupled2) == (1.0, 1.0, 1.0, 1.0)
    lengths = windows.answered.sum(axis=1)
    assert found.chain5 == lengths.sum() / sum(-(-int(length) // 6) for length in lengths)


def test_runs_are_the_answers_in_a_batch_of_windows() -> None:
    places = np.array([[1, 1, 2, 2, 2, 0, 0], [1, 1, 1, 1, 1, 1, 1]], dtype=np.int16)
    windows = Windows(places, places, places, places > 5)
    batch = to_device(windows, slice(0, 2), CPU)
    assert batch.runs.tolist() == [0, 2, 5, 7, 14] and batch.runs.dtype == torch.int32
    assert batch.visible().sum(dim=2).tolist() == [[1, 2, 1, 2, 3, 1, 2], [1, 2, 3, 4, 5, 6, 7]]


def test_in_bfloat16_the_draft_learns_in_float32(tmp_path: Path) -> None:
    """What runs on a GPU, but for its graphs."""
    directory = make_tiny_model(tmp_path, "qwen3", layers=3, spread=0.4)
    exact, rounded = (load_pair(directory, (0, 2), CPU, 64, d) for d in (None, torch.bfloat16))
    prompts = [[5, 6, 7], list(range(20, 60))]
    for pair in (exact, rounded):
        answerer = Answerer(pair.decoder, pair.head, (), 3, 64, 8)
        assert [len(ids) for ids in answerer.answer(prompts, [0.0, 1.0], 0)] == [8, 8]
    batch = to_device(lay_out_windows(some_answers(), 64), slice(0, 2), CPU)
    gradients = []
    for pair in (exact, rounded):
        rows = pair.draft_rows(batch)
        assert rows.dtype == torch.float32
        distillation_loss(rows, pair.target_rows(batch), pair.head).backward()
        free = [weight for weight in pair.draft.parameters() if weight.requires_grad]
        assert all(weight.grad.dtype == torch.float32 for weight in free)
        gradients.append(torch.cat([weight.grad.flatten() for weight in free]))
    assert torch.cosine_similarity(*gradients, dim=0) > 0.98


def test_agreement_is_what_counting_one_by_one_finds(tmp_path: Path) -> None:
    pair = load_pair(make_tiny_model(tmp_path, "llama", layers=3), (0, 2), CPU, 64)
    answers, ids = some_answers(), torch.arange(0, 128, 2)
    windows = lay_out_windows(answers, 64, [[item] for item in range(7)])
    found = Examination(pair, ids, windows, batch=4).agreement()
    target: Any = AutoModelForCausalLM.from_pretrained(tmp_path)
    hits, coupled, steps, first = [], [], 0, 0
    for item, length in enumerate(answers.lengths.tolist()):
        tokens = torch.tensor(answers.tokens[first : first + length]).long()[None]
        first += length
        rows = slice(int(answers.prompt_lengths[item]) - 1, length - 1)
        with torch.no_grad():
            wanted, guessed = (model(tokens).logits[0, rows] for model in (target, pair.draft))
        best = ids[guessed[:, ids].topk(4).indices]
        mine = best == wanted.argmax(dim=-1)[:, None]
        hits.append(mine)
        steps += walk(mine[:, 0].tolist(), 7)
        for row, (theirs, ours) in enumerate(zip(wanted, guessed, strict=True)):
            noise = gumbel(item, 0, rows.start + row + 1, 128, CPU)
            two = ids[(ours + noise)[ids].topk(2).indices]
            coupled.append((two == (theirs + noise).argmax()).tolist())
    flat, noisy = torch.cat(hits).double(), torch.tensor(coupled).double()
    assert found.top1 == flat[:, 0].mean()
    assert found.top2 == flat[:, :2].sum(dim=1).mean()
    assert found.top4 == pytest.approx(flat.sum(dim=1).mean().item())
    assert found.coupled1 == noisy[:, 0].mean()
    assert found.coupled2 == noisy.sum(dim=1).mean()
    assert 0 < found.top1 < found.top4 < 1
    assert found.chain7 == len(flat) / steps


@pytest.mark.parametrize(("name", "number"), [("auto", 0), ("cuda", 0), ("cuda:1", 1)])
def test_a_gpu_is_chosen_by_its_number(
    monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    """The library refuses to make a device without a number a thread's own."""
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch._C, "_cuda_setDevice", chosen.append, raising=False)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        assert use_device(name) == torch.device("cuda", number)
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
    assert chosen == [number]


def test_layers_that_the_target_has_not_are_refused() -> None:
    assert choose_layers(None, 30) == (0, 1, 28, 29)
    assert choose_layers(None, 3) == (0, 1, 2)
    for wrong in ((), (1, 0), (0, 0), (0, 30)):
        with pytest.raises(InvalidField, match=r"^--layers must be .* 0 to 29, with commas"):
            choose_layers(wrong, 30)


@pytest.mark.parametrize(
    ("right", "depth", "steps"),
    [
        ([], 5, 0),
        ([False] * 4, 5, 4),
        ([True] * 12, 5, 2),
        ([True] * 7, 5, 2),
        ([True, False, True, True, False], 5, 2),
        ([True, False, True, True, False], 1, 3),
    ],
)
def test_steps_of_chains(right: list[bool], depth: int, steps: int) -> None:
    assert walk(right, depth) == steps


def test_every_answer_stands_in_one_window_and_sees_itself_alone(tmp_path: Path) -> None:
    answers = some_answers(20)
    packed = pack(answers.lengths.tolist(), 64)
    assert sorted(item for window in packed for item in window) == list(range(20))
    assert len(packed) == -(-int(answers.lengths.sum()) // 64)  # these fit without a gap too many
    windows = lay_out_windows(answers, 64)
    assert windows.answered.sum() == answers.answer_tokens
    pair = load_pair(make_tiny_model(tmp_path, "llama"), (0,), CPU, 64)
    batch = to_device(windows, slice(0, len(windows)), CPU)
    alone = to_device(
        lay_out_windows(answers, 64, [[item] for window in packed for item in window]),
        slice(0, 20),
        CPU,
    )
    torch.testing.assert_close(pair.target_rows(batch), pair.target_rows(alone))


def test_what_the_target_says_is_kept_for_later_rounds(tmp_path: Path) -> None:
    pair = load_pair(make_tiny_model(tmp_path, "llama"), (0,), CPU, 64)
    windows = lay_out_windows(some_answers(20), 64)
    whole = pair.target_rows(to_device(windows, slice(0, len(windows)), CPU))
    exact = whole.split(windows.answered.sum(axis=1).tolist())
    asked: list[Batch] = []
    counting: Any = SimpleNamespace(
        head=pair.head,
        dtype=pair.dtype,
        device=pair.device,
        target_rows=lambda batch: asked.append(batch) or pair.target_rows(batch),
    )
    for room, passes in ((whole.nbytes, 3), (whole.nbytes - 1, 5)):
        memory = TargetMemory(counting, windows, room)
        asked.clear()
        for numbers in ([4, 1], [0, 3], [1, 2], [3, 4], [2, 0]):  # the third knows one of its two
            batch = to_device(windows, np.array(numbers), CPU)
            found = memory.rows(np.array(numbers), batch)
            torch.testing.assert_close(found, torch.cat([exact[number] for number in numbers]))
        assert len(asked) == passes


def test_every_window_comes_once_a_round() -> None:
    rows = np.concatenate([rows_of(step, 4, 10, seed=1) for step in range(5)])
    assert sorted(rows[:10]) == sorted(rows[10:]) == list(range(10))
    assert list(rows[:10]) != list(rows[10:])
    assert list(rows_of(3, 4, 10, seed=1)) == list(rows[12:16])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_moves_within_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with AnswerBar(total=40) as bar:
        bar.move(20, 0.5, 100)
        assert "25%" in str(bar._bar) and "10/40" in str(bar._bar)
        assert "tokens/s" in str(bar._bar)
        bar.batch_done(20, 150)  # some ended early
        bar.move(20, 0.25, 30)
        assert "25/40" in str(bar._bar) and bar.tokens == 150


def test_a_run_goes_on_when_blocks_come_or_go_beside_its_target(tmp_path: Path) -> None:
    target = make_tiny_model(tmp_path / "target", "llama", layers=1)
    place = tmp_path / "run"
    settings = TrainSettings(target, place, place, place, prompts=())
    before = answer_identity(settings)
    (target / BLOCK_FILE).write_bytes(b"the weights once more")
    assert answer_identity(settings) == before
    (target / "model-00002-of-00002.safetensors").write_bytes(b"more weights")
    assert answer_identity(settings) != before


def test_each_use_of_chance_has_numbers_of_its_own() -> None:
    purposes = ("prompts", "answers of shard-0000", "windows")
    seeds = {derived_seed(seed, purpose) for seed in (0, 1, 2**64 - 1) for purpose in purposes}
    assert len(seeds) == 9
    assert derived_seed(0, "windows") == WINDOWS_SEED  # the same on every machine


def test_loss_and_gradient_equal_the_plain_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objective, "MOST_LOGITS", 100)  # three rows a piece
    torch.manual_seed(0)
    head, target = torch.randn(30, 8), torch.randn(10, 8)
    draft = torch.randn(10, 8, requires_grad=True)
    loss = 2 * distillation_loss(draft, target, head)
    [gradient] = torch.autograd.grad(loss, draft)
    wanted, logs = (target @ head.T).softmax(-1), (draft @ head.T).log_softmax(-1)
    plain = -2 * (wanted * logs).sum(-1).mean()
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close(gradient, torch.autograd.grad(plain, draft)[0])


def test_turning_and_its_gradient_equal_the_plain_formula() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, 8)[:, :, 1:].requires_grad_()
    angles = torch.randn(2, 3, 1, 4)
    cos, sin = angles.cos(), angles.sin()
    first, second = x.chunk(2, dim=-1)
    plain = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    turned = Turn.apply(x, cos, sin)
    outer = torch.randn_like(plain)
    torch.testing.assert_close(turned, plain)
    [gradient], [expected] = (torch.autograd.grad(y, x, outer) for y in (turned, plain))
    torch.testing.assert_close(gradient, expected)
    rounded = Turn.apply(x.bfloat16(), cos, sin)
    assert rounded.dtype == torch.bfloat16  # rounded once, at the end
    exact = Turn.apply(x.bfloat16().float(), cos, sin)
    torch.testing.assert_close(rounded, exact.bfloat16(), atol=1e-6, rtol=2**-8)


def test_the_learning_rate_rises_and_falls() -> None:
    rates = [learning_rate(2.0, place / 100) for place in range(101)]
    assert rates[0] == 0.0
    assert rates[2] == 2.0 == max(rates)
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert rates[-1] == pytest.approx(0.0)


def test_the_reduced_vocabulary_counts_answers_only(tmp_path: Path) -> None:
    answers = Answers(
        tokens=np.array([9, 9, 9, 4, 4, 7, 9, 5, 4, 7, 11, 2], np.int32),
        lengths=np.array([6, 6], np.int32),
        prompt_lengths=np.array([3, 1], np.int32),
        temperatures=np.zeros(2, np.float32),
        seeds=np.zeros(2, np.int64),
    )
    counts = answer_counts(answers, 12)
    assert {token: count for token, count in enumerate(counts) if count} == {
        2: 1,
        4: 3,
        5: 1,
        7: 2,
        11: 1,
    }
    ids = choose_vocabulary(counts, 3, ends=(2,), specials=(0, 1, 11))
    assert ids.tolist() == [2, 4, 7, 11]  # of 2, 5 and 11 the lowest is the third
    save_vocabulary(tmp_path, ids)
    stored = load_file(tmp_path / "draft_vocabulary.safetensors")
    assert stored.keys() == {"ids"}
    assert (stored["ids"].dtype, stored["ids"].tolist()) == (np.int32, [2, 4, 7, 11])


def test_chats_become_the_ids_that_gateway_and_library_make(tmp_path: Path) -> None:
    make_tiny_model(tmp_path, "llama", vocab=300)
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    tokenizer["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst"}
    tokenizer["truncation"]["stride"] = 0
    library = AutoTokenizer.from_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    chats = [[{"role": "user", "content": text}] for text in ("Hi", "Name three <s> rivers.</s>")]
    expected = [
        library.apply_chat_template(chat, add_generation_prompt=True)["input_ids"] for chat in chats
    ]
    found = chat_ids(tmp_path, chats)
    assert [list(ids) for ids in found] == expected
    gateway, template = Tokenizer(tmp_path), ChatTemplate(tmp_path)
    texts = [template.render(ChatMessage(**turn) for turn in chat) for chat in chats]
    assert [asyncio.run(gateway.encode(text)) for text in texts] == found


def test_prompts_without_a_chat_template_are_refused_by_the_option(tmp_path: Path) -> None:
    make_tiny_model(tmp_path, "llama")
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        (tmp_path / name).unlink(missing_ok=True)
    with pytest.raises(InvalidField, match=r"^--prompts must be chats with messages absent: this"):
        chat_ids(tmp_path, [[{"role": "user", "content": "Hi"}]])
