"""The gauge: what clients sent is counted, what scripts ran inside is not, nothing is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.own.gauge import Gauge
from tests.lab.messages import TOPIC, pending

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.store import Store
    from tests.lab.servers import Server


async def test_one_script_call_is_one_command_whatever_it_does(
    store: Store, server: Server
) -> None:
    async with await Gauge.open(server.url) as gauge:
        await pending(store)  # loads the script, registers the topic
        await store.views.counts(TOPIC)
        before = await gauge.read()
        await pending(store)
        after = await gauge.read()
    assert after.calls - before.calls == 1
    assert after.busy > before.busy
    assert after.cpu >= before.cpu


async def test_its_own_questions_do_not_count(store: Store, server: Server) -> None:
    async with await Gauge.open(server.url) as gauge:
        before = await gauge.read()
        assert await gauge.busy() == before.busy
        assert (await gauge.read()).calls == before.calls


async def test_it_sees_memory_fill(raw: Redis, server: Server) -> None:
    async with await Gauge.open(server.url) as gauge:
        before = await gauge.read()
        await raw.set("foreign", b"x" * 5_000_000)
        assert (await gauge.read()).memory - before.memory > 4_000_000
        await raw.delete("foreign")


async def test_it_says_what_kind_of_server_it_is(server: Server) -> None:
    async with await Gauge.open(server.url) as gauge:
        nature = await gauge.nature()
    assert f"{nature.name}-{nature.version}".lower().startswith(server.kind.removesuffix("newest"))
    assert not nature.persists
    assert nature.maxmemory == 0
    assert nature.memory > 0
