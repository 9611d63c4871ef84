"""Keys and rates: who is let in at the gRPC door, and how often."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import aiohttp
import pytest
from support.fakes import FakeDraft, FakeVerify, Round, gateway, identity, until, worker
from support.tiny_models import make_tiny_tokenizer

from foredraft import AsyncClient, Client, InvalidRequest, Overloaded, Unauthenticated
from foredraft.config import RateLimit, SettingError
from foredraft.params import FinishReason
from foredraft.tokenizer_hash import tokenizer_identity
from foredraft.wire.errors import Overloaded as ServerOverloaded
from foredraft.wire.errors import Unauthenticated as NotLetIn
from gateway.access import EVERYBODY, NOBODY, Access
from gateway.keys import Keys
from gateway.rates import Rates

KEY, OTHER = "canary-key-1234", "canary-key-5678"
STOP = FinishReason.STOP


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_tokenizer(tmp_path_factory.mktemp("tiny"), 259)


@pytest.fixture
def verify(model):
    made = tokenizer_identity(model)
    return FakeVerify(identity(made.hash, made.vocab_size), [Round((10,), finish=STOP)])


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"# ours\n{KEY}\n\n  {OTHER}  \n")
    return path


@pytest.mark.parametrize(
    ("header", "caller"),
    [
        (f"Bearer {KEY}", 0),
        (f"bearer  {OTHER} ", 1),
        (None, None),
        ("", None),
        (KEY, None),
        ("Bearer", None),
        (f"Basic {KEY}", None),
        (f"Bearer {KEY}x", None),
        (f"Bearer {KEY[:-1]}", None),
        ("Bearer # ours", None),
        ("Bearer \udcff", None),
    ],
)
def test_only_a_listed_key_is_let_in(keys: Path, header: str | None, caller: int | None) -> None:
    known = Keys.read(keys)
    if caller is None:
        with pytest.raises(NotLetIn) as refused:
            known.check(header)
        assert "canary" not in str(refused.value)
    else:
        assert known.check(header) == caller


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "holds no key"),
        (b"# only this\n", "holds no key"),
        (b"fine\ntwo words\n", "line 2"),
        (b"bell\x07\n", "line 1"),
        ("schlüssel".encode(), "printable ASCII"),
        (None, "No such file"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    tmp_path: Path, content: bytes | None, told: str
) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingError, match=told) as refused:
        Keys.read(path)
    assert str(path) in str(refused.value) and "words" not in str(refused.value)


@pytest.mark.asyncio
async def test_a_burst_waits_in_order_and_the_rest_is_turned_away() -> None:
    rates = Rates(RateLimit(3, 0.3))
    order: list[int] = []

    async def enter(number: int) -> None:
        await rates.take_turn(0)
        order.append(number)

    results = await asyncio.gather(*map(enter, range(9)), return_exceptions=True)
    refused = [result for result in results if isinstance(result, ServerOverloaded)]
    assert order == [0, 1, 2, 3, 4, 5] and len(refused) == 3
    assert refused[0].retry_after == 0.3 and "3/0.3" in str(refused[0])


@pytest.mark.asyncio
async def test_callers_do_not_wait_for_each_other_and_one_that_leaves_leaves_its_place() -> None:
    access = Access(Keys([KEY, OTHER]), Rates(RateLimit(1, 60.0)))
    await access.begin(f"Bearer {KEY}")
    waiting = asyncio.create_task(access.begin(f"Bearer {KEY}"))
    await asyncio.sleep(0)
    with pytest.raises(ServerOverloaded):
        await access.begin(f"Bearer {KEY}")
    await access.begin(f"Bearer {OTHER}")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    again = asyncio.create_task(access.begin(f"Bearer {KEY}"))
    await asyncio.sleep(0.05)
    assert not again.done()
    again.cancel()


@pytest.mark.asyncio
async def test_the_grpc_door_wants_a_key(
    model: Path, verify: FakeVerify, keys: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with (
        worker(verify, "127.0.0.1:0") as address,
        gateway(model, address, api_keys=keys, rate=RateLimit(2, 60.0)) as running,
        AsyncClient(running.address) as nobody,
        AsyncClient(running.address, api_key="canary-wrong") as wrong,
        AsyncClient(running.address, api_key=KEY) as client,
        AsyncClient(running.address, api_key=OTHER) as other,
    ):
        for refused in (nobody, wrong):
            with pytest.raises(Unauthenticated):
                await refused.generate("hello")
            with pytest.raises(Unauthenticated):
                await refused.models()
        assert not verify.opened
        assert [model.model_id for model in await client.models()] == ["tiny"]
        for _ in range(2):
            assert (await client.generate("hello")).token_ids == [10]
        queued = [asyncio.create_task(client.generate("hello")) for _ in range(3)]
        await until(lambda: any(task.done() for task in queued))
        (turned_away,) = [task for task in queued if task.done()]
        with pytest.raises(Overloaded, match="2/60") as overloaded:
            await turned_away
        assert overloaded.value.retry_after == 60.0
        for task in queued:
            task.cancel()
        assert (await other.generate("hello")).token_ids == [10]

        def call() -> list[int]:
            with Client(running.address, api_key=OTHER) as blocking:
                return blocking.generate("hello").token_ids

        assert await asyncio.to_thread(call) == [10]
    assert "canary" not in caplog.text


@pytest.mark.parametrize("key", ["", "two words", "schlüssel", 7])
def test_a_key_that_cannot_be_sent_is_refused_without_showing_it(key: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Client("localhost:1", api_key=key)
    assert refused.value.field == "api_key"
    assert not key or str(key) not in str(refused.value)


@pytest.mark.asyncio
async def test_a_tenant_is_a_key_as_long_as_the_gateway_lives_and_tells_nothing_of_it() -> None:
    access, restarted = Access(Keys([KEY, OTHER]), None), Access(Keys([KEY, OTHER]), None)
    ours, theirs = [await access.begin(f"Bearer {key}") for key in (KEY, OTHER)]
    assert ours == await access.begin(f"Bearer {KEY}") and ours != theirs
    assert {ours, theirs}.isdisjoint({NOBODY, EVERYBODY}) and max(ours, theirs) < 2**64
    assert await restarted.begin(f"Bearer {KEY}") not in (ours, theirs)
    assert await Access(None, None).begin(None) == EVERYBODY


@pytest.mark.asyncio
async def test_drafters_are_told_the_tenant_at_both_doors(
    model: Path, verify: FakeVerify, keys: Path
) -> None:
    draft = FakeDraft(verify.identity)
    async with (
        worker(verify, "127.0.0.1:0") as address,
        worker(draft, "127.0.0.1:0") as drafts,
        gateway(model, address, drafts, api_keys=keys, http_listen="127.0.0.1:0") as running,
        AsyncClient(running.address, api_key=KEY) as client,
        AsyncClient(running.address, api_key=OTHER) as other,
        aiohttp.ClientSession(f"http://{running.http.address}") as http,
    ):
        await until(lambda: draft.budgets)
        for asked in (client, other, client):
            await asked.generate("hello", max_tokens=3)
        body = {"prompt": "hello", "max_tokens": 3}
        headers = {"Authorization": f"Bearer {KEY}"}
        async with http.post("/v1/completions", json=body, headers=headers) as response:
            assert response.status == 200
        await until(lambda: len(draft.opened) == 4)
        ours, theirs, *again = [opened.tenant for opened in draft.opened]
        assert again == [ours, ours] and theirs != ours and NOBODY not in (ours, theirs)
