"""What is not an answer: models, health, tokens, metrics."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import aiohttp
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.fakes import PATIENCE_SECONDS, gateway, until
from support.http_door import MODEL, door

from foredraft.params import Schedule
from foredraft.wire.messages import Commit, DraftTimings, NodeBlocks, StepResult, StepTimings
from gateway.metrics import Metrics


async def get_metrics(at) -> dict[str, float]:
    """Values by the name of the sample and, after a colon each, the values of its labels."""
    async with at.http.get("/metrics") as response:
        assert response.status == 200
        families = text_string_to_metric_families(await response.text())
    samples = [sample for family in families for sample in family.samples]
    return {":".join((s.name, *s.labels.values())): s.value for s in samples}


@pytest.mark.asyncio
async def test_models(model):
    async with door(model) as at:
        [listed] = (await at.client.models.list()).data
        assert (listed.id, listed.object, listed.max_model_len) == (MODEL, "model", 256)
        assert await at.client.models.retrieve(MODEL) == listed
        with pytest.raises(openai.NotFoundError) as refused:
            await at.client.models.retrieve("some/other")
        assert refused.value.code == "model_not_found"


@pytest.mark.asyncio
async def test_health_says_whether_answers_can_be_given(model, tmp_path):
    async with door(model) as at, at.http.get("/health") as response:
        assert response.status == 200
    nobody = f"unix:{tmp_path}/nobody"
    async with gateway(model, nobody, ready=False, http_listen="127.0.0.1:0") as running:
        base = f"http://{running.http.address}"
        async with openai.AsyncOpenAI(
            base_url=f"{base}/v1", api_key="none", max_retries=0
        ) as client:
            async with aiohttp.request("GET", f"{base}/health") as response:
                assert response.status == 503
            with pytest.raises(openai.InternalServerError) as refused:
                await client.completions.create(model=MODEL, prompt="a")
            assert refused.value.status_code == 503
            assert refused.value.response.headers["Retry-After"] == "1"


@pytest.mark.asyncio
async def test_tokens_and_back(model, words):
    async with door(model) as at:

        async def ask(path: str, **body: object):
            async with at.http.post(path, json=body) as response:
                return response.status, await response.json()

        ids = list(words.ids("a é"))
        plain = {"count": 4, "max_model_len": 256, "tokens": ids, "token_strs": None}
        assert await ask("/tokenize", prompt="a é", model=MODEL) == (200, plain)
        _, shown = await ask("/tokenize", prompt="a é", return_token_strs=True)
        assert shown["token_strs"] == ["a", " ", "\ufffd", "\ufffd"]
        assert await ask("/detokenize", tokens=[*ids, 2]) == (200, {"prompt": "a é</s>"})
        assert await ask("/detokenize", tokens=[]) == (200, {"prompt": ""})

        chat = [{"role": "user", "content": "hi"}]
        _, made = await ask("/tokenize", messages=chat, add_generation_prompt=True)
        _, back = await ask("/detokenize", tokens=made["tokens"])
        assert back["prompt"] == "user: hi</s>assistant: "
        _, longer = await ask("/tokenize", prompt=300 * "a")
        assert longer["count"] == 300  # more than the context takes

        for path, body, param in [
            ("/tokenize", {}, "prompt"),
            ("/tokenize", {"prompt": 5000 * "a"}, "prompt"),
            ("/tokenize", {"messages": chat, "add_generation_prompt": False}, None),
            ("/tokenize", {"prompt": "a", "foo": 1}, "foo"),
            ("/tokenize", {"prompt": "a", "messages": chat}, "prompt"),
            ("/tokenize", {"messages": [{"role": "user", "content": 5000 * "a"}]}, "messages"),
            ("/tokenize", {"messages": []}, "messages"),
            ("/detokenize", {"tokens": [259]}, "tokens"),
            ("/detokenize", {"tokens": ["a"]}, "tokens"),
            ("/detokenize", {"tokens": "a"}, "tokens"),
        ]:
            status, refused = await ask(path, **body)
            assert status == 400
            assert refused["error"]["param"] == (param or "add_generation_prompt")
        status, refused = await ask("/tokenize", prompt="a", model="other")
        assert (status, refused["error"]["code"]) == (404, "model_not_found")


@pytest.mark.asyncio
async def test_metrics_count_what_was_delivered(model, words):
    rounds = [words.say("ab", accepted=1, verified=4), words.end("cd", accepted=2, verified=3)]
    async with door(model, rounds) as at:
        await at.client.completions.create(model=MODEL, prompt="abc", n=2)
        await at.client.completions.create(model=MODEL, prompt="abc", max_tokens=3)
        with pytest.raises(openai.BadRequestError):
            await at.client.completions.create(model=MODEL, prompt="abc", n=0)
        values = await get_metrics(at)
        assert values["foredraft_requests_total:stop"] == 2
        assert values["foredraft_requests_total:length"] == 1
        assert values["foredraft_requests_running"] == 0
        assert values["foredraft_requests_waiting"] == 0
        assert values["foredraft_prompt_tokens_total"] == 9
        assert values["foredraft_generation_tokens_total"] == 11
        assert values["foredraft_steps_total"] == 6
        assert values["foredraft_verified_nodes_total"] == 21
        assert values["foredraft_accepted_tokens_total:1"] == 6
        assert values["foredraft_accepted_tokens_total:2"] == 2
        assert values["foredraft_time_to_first_token_seconds_count"] == 3
        assert values["foredraft_inter_token_latency_seconds_count"] == 5
        assert values["foredraft_request_latency_seconds_count"] == 3
        assert values["foredraft_http_responses_total:/v1/completions:200"] == 2
        assert values["foredraft_http_responses_total:/v1/completions:400"] == 1


@pytest.mark.asyncio
async def test_metrics_show_steps(model):
    timings = StepTimings(500, 60, 2000, 700, 80, hold_limit_us=3000)
    commits = (Commit(91, 1, 0, (5,), verified=5), Commit(92, 1, 0, (5, 6), verified=2))
    async with door(model) as at:
        assert (await get_metrics(at))["foredraft_step_nodes_count"] == 0
        at.verify.say(StepResult(1, commits, timings, free_blocks=40))
        at.verify.say(StepResult(2, commits[:1], timings, free_blocks=30))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (values := await get_metrics(at))["foredraft_free_kv_blocks:0"] != 30:
                await asyncio.sleep(0.01)
    assert values["foredraft_step_nodes_count"] == 2 and values["foredraft_step_nodes_sum"] == 12
    assert values["foredraft_step_nodes_bucket:4.0"] == 0
    assert values["foredraft_step_nodes_bucket:8.0"] == 2
    assert values["foredraft_step_hold_limit_seconds_sum"] == pytest.approx(0.006)
    own = {"held": 1000, "prepare": 120, "forward": 4000, "sample": 1400, "commit": 160}
    for part, microseconds in own.items():
        assert values[f"foredraft_step_seconds_count:{part}"] == 2
        assert values[f"foredraft_step_seconds_sum:{part}"] == pytest.approx(microseconds / 1e6)


@pytest.mark.asyncio
async def test_metrics_show_what_the_gateway_decides(model):
    settings = {"max_nodes": 24, "max_hold_us": 5000, "schedule": Schedule.HELD}
    async with door(model, drafting=True, **settings) as at:
        await until(lambda: at.draft.budgets and at.verify.budgets[-1].drafting)
        values = await get_metrics(at)
        assert values["foredraft_workers_up:verify"] == values["foredraft_workers_up:draft"] == 1
        assert values["foredraft_way:held:0"] == 1 > values["foredraft_way:free:0"]
        assert values["foredraft_drafting:0"] == 1
        assert values["foredraft_budget_max_nodes:0"] == at.verify.budgets[-1].max_nodes == 24
        assert values["foredraft_budget_max_hold_seconds:0"] == pytest.approx(0.005)
        told = at.draft.budgets[-1]
        assert values["foredraft_draft_max_nodes:0"] == told.max_nodes_per_sequence == 24
        assert values["foredraft_draft_max_depth:0"] == told.max_depth == 8
        assert values["foredraft_draft_min_survival:0"] == pytest.approx(told.min_survival)
        assert values["foredraft_draft_ahead_survival:0"] == pytest.approx(told.ahead_survival)

        at.draft.identity = replace(at.draft.identity, protocol_version=0)  # it stays down
        at.draft.hang_up()
        await until(lambda: not at.verify.budgets[-1].drafting)
        values = await get_metrics(at)
        assert values["foredraft_workers_up:draft"] == 0 == values["foredraft_drafting:0"]
        assert "foredraft_draft_max_nodes:0" not in values


@pytest.mark.asyncio
async def test_metrics_show_what_drafters_did(model):
    async with door(model, drafting=True) as at:
        await until(lambda: at.draft.budgets)
        for passes in (2, 3):
            at.draft.say(NodeBlocks((), DraftTimings(1500, 40_000, passes)))
        async with asyncio.timeout(5):
            while (values := await get_metrics(at))["foredraft_draft_passes_total"] != 5:
                await asyncio.sleep(0.01)
        assert values["foredraft_draft_seconds_total:suffix"] == pytest.approx(0.003)
        assert values["foredraft_draft_seconds_total:model"] == pytest.approx(0.08)


def test_every_metric_is_documented():
    documented = (Path(__file__).parents[2] / "docs" / "http.md").read_text("utf-8")
    names = [family.name for family in Metrics().registry.collect()]
    ours = [name.removeprefix("foredraft_") for name in names if name.startswith("foredraft_")]
    assert len(ours) > 20
    missing = [name for name in ours if not re.search(rf"`{name}(_total|_info)?[{{`]", documented)]
    assert not missing
