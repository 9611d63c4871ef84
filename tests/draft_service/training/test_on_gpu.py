"""What only a GPU has: graphs, its attention kernels, memory of the target. Skipped without one."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.tiny_models import make_tiny_model
from torch.nn.attention import SDPBackend, sdpa_kernel

from draft_service.training.answerer import Answerer, _Steps
from draft_service.training.batches import Windows, to_device
from draft_service.training.decoder import attend, attend_in_runs, attend_within, group_mask
from draft_service.training.objective import distillation_loss
from draft_service.training.pair import Pair, load_pair
from draft_service.training.progress_log import ProgressLog
from draft_service.training.run import train_draft
from draft_service.training.settings import TrainSettings

GPU = torch.device("cuda", 0)
LENGTH = 200

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_graphs_compute_what_their_steps_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over several buckets and numbers of rows, in the type that a run has."""
    directory = make_tiny_model(tmp_path, "llama", hidden=192, heads=3, kv_heads=1, spread=0.1)
    pair = load_pair(directory, (0,), GPU, LENGTH)
    # What a prompt leaves of the length ends its answer, so that it is known when rows go.
    prompts = [[5, 60 + number] * (50 + 2 * number) for number in range(22)]
    graphs: list[tuple[int, int]] = []
    capture = _Steps._capture

    def noting(steps: _Steps, bucket: int) -> Any:
        graphs.append((bucket, steps._active))
        return capture(steps, bucket)

    monkeypatch.setattr(_Steps, "_capture", noting)
    found = answers(pair, prompts)
    left = [LENGTH - len(prompt) for prompt in prompts]
    assert [len(ids) for ids in found[1:]] == left[1:]  # the last one alive is cut
    assert len({bucket for bucket, _ in graphs}) > 1 and len({rows for _, rows in graphs}) > 3
    assert len(set(graphs)) == len(graphs)
    monkeypatch.setattr(
        _Steps,
        "_capture",
        lambda steps, bucket: SimpleNamespace(replay=partial(steps._step, bucket), pool=id),
    )
    assert answers(pair, prompts) == found


def answers(pair: Pair, prompts: list[list[int]]) -> list[list[int]]:
    heats = [(0.0, 0.7, 1.0)[number % 3] for number in range(len(prompts))]
    return Answerer(pair.decoder, pair.head, (), 24, LENGTH, 150).answer(prompts, heats, 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
@pytest.mark.parametrize(
    ("batch", "rows", "slots"), [(96, 1, 128), (8, 37, 37), (4, 512, 512)], ids=str
)
def test_the_memory_efficient_kernel_takes_every_shape(
    batch: int, rows: int, slots: int, dtype: torch.dtype
) -> None:
    """Of a step, of prompts of odd width, of training with its gradient: none falls back."""
    torch.manual_seed(0)
    q = torch.randn(batch, rows, 3, 3, 64, device=GPU, dtype=dtype, requires_grad=True)
    k, v = torch.randn(2, batch, 3, 640, 64, device=GPU, dtype=dtype)[:, :, :, :slots]
    visible = torch.ones(rows, slots, dtype=torch.bool, device=GPU).tril_(slots - rows)
    mask = group_mask(visible.expand(batch, rows, slots), 3, dtype)
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        ours = with_gradient(q, k, v, mask)
    exact = with_gradient(q.detach().double().requires_grad_(), k.double(), v.double(), mask)
    for found, wanted in zip(ours, exact, strict=True):
        length = wanted.norm(dim=-1)  # of a row that sees itself alone the gradient is 0
        wrong = (found - wanted).norm(dim=-1) / (length + length.mean())
        assert wrong.max() < (0.03 if dtype is torch.bfloat16 else 0.001)


def test_runs_attend_to_what_a_mask_shows() -> None:
    torch.manual_seed(0)
    places = torch.tensor([[1] * 70 + [2] * 130 + [0] * 56, [1] * 3 + [2] * 1 + [0] * 252])
    q = torch.randn(2, 256, 3, 3, 64, device=GPU, dtype=torch.bfloat16, requires_grad=True)
    k, v = torch.randn(2, 2, 256, 3, 64, device=GPU, dtype=torch.bfloat16)
    windows = Windows(*[places.numpy().astype(np.int16)] * 3, answered=np.zeros((2, 256), bool))
    batch = to_device(windows, slice(0, 2), GPU)
    exact = q.detach().double().requires_grad_()
    mask = group_mask(batch.visible(), 3, torch.float64)
    wanted = attend_within(mask)(0, exact, k.double(), v.double())
    found = attend_in_runs(batch.runs, 256)(0, q, k, v)
    shown = (places > 0)[..., None].to(GPU)  # nobody asks for what follows the last answer
    torch.testing.assert_close(found * shown, (wanted * shown).to(found), atol=0.02, rtol=0.02)
    [ours] = torch.autograd.grad((found * shown).float().square().sum(), q)
    [theirs] = torch.autograd.grad((wanted * shown).square().sum(), exact)
    assert (ours - theirs).norm() < 0.02 * theirs.norm()


def with_gradient(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What rows attend to and the gradient of its squares: [batch, rows, heads * width] each."""
    found = attend(q, k, v, mask.to(q.dtype))
    [gradient] = torch.autograd.grad(found.double().square().sum(), q)
    return found.detach(), gradient.flatten(2)


def test_the_loss_is_exact_although_its_products_are_rounded() -> None:
    """Logits around 20, where bfloat16 has steps of an eighth."""
    torch.manual_seed(0)
    head, target, draft = (torch.randn(n, 64, device=GPU).bfloat16() for n in (1000, 300, 300))
    draft = (target + 0.3 * draft).float().requires_grad_()
    loss = distillation_loss(draft, 2 * target, head)
    wanted = (2 * target.double() @ head.double().T).softmax(dim=-1)
    given = draft.bfloat16().double().detach().requires_grad_()
    plain = -(wanted * (given @ head.double().T).log_softmax(dim=-1)).sum(dim=-1).mean()
    torch.testing.assert_close(loss.double(), plain, atol=1e-3, rtol=1e-3)
    ours, exact = torch.autograd.grad(loss, draft)[0], torch.autograd.grad(plain, given)[0]
    assert (ours - exact).norm() < 0.01 * exact.norm()


def test_a_run_makes_a_draft_and_asks_the_target_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[int] = []
    rows = Pair.target_rows
    monkeypatch.setattr(Pair, "target_rows", lambda *given: passes.append(1) or rows(*given))
    make_tiny_model(tmp_path / "target", "qwen3", layers=3, hidden=32, tie=False, spread=0.4)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": f"{number} Hi"}) for number in range(30)))
    settings = TrainSettings(
        target=tmp_path / "target",
        output=tmp_path / "draft",
        work=tmp_path / "work",
        answers=tmp_path / "answers",
        prompts=(prompts,),
        holdout=6,
        temperatures=(0.0, 1.0),
        max_answer=24,
        length=64,
        answer_batch=24,
        layers=(0, 2),
        batch=6,
        learning_rate=4e-3,
        steps=40,
        vocabulary=100,
        log_steps=20,
        device="auto",
    )
    train_draft(settings, Event(), lambda text: None)
    first, *_, last = ProgressLog(settings.output / "training.jsonl").lines()
    assert last.agreement.top1 > first.agreement.top1 + 0.1
    assert len(passes) < 20  # one for what measures, and one for each step of the first round
