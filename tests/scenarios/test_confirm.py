"""confirm="replicated" and "fsynced": what produce says of a message is true of it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import InvalidInput, MessageQueue, NotConfirmed, ProduceUnknown
from tests.lab.nodes import Node, until_true
from tests.lab.ports import free_ports
from tests.lab.proxy import Proxy
from tests.lab.sentinel import Watched
from tests.lab.servers import Kind, Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

TOPIC = "work"
AOF = ("--appendonly", "yes", "--repl-diskless-sync-delay", "0")


@pytest.fixture(params=[Kind.VALKEY_9_1, Kind.REDIS_7_0])
def kind(request: pytest.FixtureRequest) -> Kind:
    chosen: Kind = request.param
    return chosen


@pytest.fixture
def alone(kind: Kind, short_path: Path) -> Iterator[Node]:
    """A primary without replicas."""
    with Node(kind, short_path / "primary", *AOF, port=free_ports(1)[0]) as node:
        yield node


@pytest.fixture
async def replica(kind: Kind, alone: Node, short_path: Path) -> AsyncIterator[Node]:
    """The primary's replica."""
    with Node(kind, short_path / "replica", *AOF, port=free_ports(1)[0]) as node:
        await node.ask("REPLICAOF", "127.0.0.1", alone.port)
        await until_true(node.is_in_step, "the replica follows")
        await until_true(lambda: alone.is_followed(1), "the replica hears it")
        yield node


async def ids_on(node: Server | Node) -> set[str]:
    assert isinstance(node, Node)
    return {id.decode() for id in await node.ask("HKEYS", f"mx-rmq:{{{TOPIC}}}:payload")}


async def test_a_replicated_message_is_on_the_replica_when_produce_returns(
    alone: Node, replica: Node
) -> None:
    async with MessageQueue(f"redis://{alone.address}", confirm_within=30) as mq:
        ids = [await mq.produce(TOPIC, 1, confirm="replicated") for _ in range(20)]
        assert await ids_on(replica) >= set(ids)
        ids = await mq.produce_many(TOPIC, list(range(1200)), confirm="replicated")
        assert await ids_on(replica) >= set(ids)
        ids = await asyncio.gather(
            *(mq.produce(TOPIC, 1, confirm="replicated", delay=60) for _ in range(100))
        )
        assert await ids_on(replica) >= set(ids)


async def test_the_queues_own_level_is_used_unless_a_produce_says_another(
    alone: Node, replica: Node
) -> None:
    async with MessageQueue(f"redis://{alone.address}", confirm="replicated") as mq:
        assert await mq.produce(TOPIC, 1) in await ids_on(replica)
        replica.freeze()
        with pytest.raises(NotConfirmed):
            await mq.produce(TOPIC, 2)
        assert await mq.produce(TOPIC, 3, confirm="stored") in await ids_on(alone)
        replica.thaw()


async def test_without_a_replica_the_message_is_stored_and_said_not_to_be_confirmed(
    alone: Node,
) -> None:
    url = f"redis://{alone.address}"
    async with MessageQueue(url, confirm_within=0.3) as mq:
        began = time.monotonic()
        with pytest.raises(NotConfirmed, match="0 of 1 replicas have confirmed it") as caught:
            await mq.produce(TOPIC, 1, confirm="replicated")
        assert 0.25 < time.monotonic() - began < 3
        assert await ids_on(alone) == set(caught.value.ids)
        with pytest.raises(NotConfirmed) as caught:
            await mq.produce_many(TOPIC, list(range(700)), confirm="replicated")
        assert len(caught.value.ids) == 700
        assert len(await ids_on(alone)) == 701
        assert (await mq.admin.stats(TOPIC)).pending == 701


async def test_producing_again_with_the_ids_waits_again_and_makes_no_second_message(
    alone: Node, replica: Node
) -> None:
    async with MessageQueue(f"redis://{alone.address}", confirm_within=0.2) as mq:
        await mq.produce(TOPIC, 0)
        replica.freeze()
        with pytest.raises(NotConfirmed) as caught:
            await mq.produce(TOPIC, 1, confirm="replicated")
        (id,) = caught.value.ids
        with pytest.raises(NotConfirmed):
            await mq.produce(TOPIC, 1, id=id, confirm="replicated")
        replica.thaw()
        await until_true(lambda: alone.is_followed(1), "the replica is back")
    async with MessageQueue(f"redis://{alone.address}", confirm_within=20) as mq:
        assert await mq.produce(TOPIC, 1, id=id, confirm="replicated") == id
        assert id in await ids_on(replica)
        assert (await mq.admin.stats(TOPIC)).pending == 2


async def test_a_call_that_comes_again_does_not_confirm_what_is_not_there(
    alone: Node, replica: Node, short_path: Path
) -> None:
    """The first copy wrote on a connection that is gone; the second one writes nothing itself."""
    async with (
        Proxy(alone.socket, short_path / "p.sock") as proxy,
        MessageQueue(f"unix://{short_path}/p.sock", confirm_within=0.5) as mq,
    ):
        await mq.produce(TOPIC, 0)
        replica.freeze()
        proxy.cut_reply()
        with pytest.raises(NotConfirmed):
            await mq.produce(TOPIC, 1, confirm="replicated")
        replica.thaw()
        assert (await mq.admin.stats(TOPIC)).pending == 2


@pytest.mark.parametrize("refused", ["wait", "pexpire"])
async def test_what_a_server_no_longer_confirms_is_stored_and_not_said_to_be_confirmed(
    alone: Node, replica: Node, refused: str
) -> None:
    """Without the write to the receipt, waiting does not cover a call that came again."""
    async with MessageQueue(f"redis://{alone.address}", confirm_within=30, patience=0.5) as mq:
        await mq.produce(TOPIC, 1, confirm="replicated")
        await alone.ask("ACL", "SETUSER", "default", f"-{refused}")
        with pytest.raises(ProduceUnknown) as caught:
            await mq.produce(TOPIC, 2, confirm="replicated")
        assert await ids_on(alone) >= set(caught.value.ids)


async def test_fsynced_is_on_both_disks(short_path: Path) -> None:
    one, two = free_ports(2)
    with (
        Node(Kind.VALKEY_9_1, short_path / "a", *AOF, port=one) as primary,
        Node(Kind.VALKEY_9_1, short_path / "b", *AOF, port=two) as replica,
    ):
        await replica.ask("REPLICAOF", "127.0.0.1", primary.port)
        await until_true(replica.is_in_step, "the replica follows")
        async with MessageQueue(f"redis://{primary.address}", confirm_within=30) as mq:
            id = await mq.produce(TOPIC, 1, confirm="fsynced")
        for node in (primary, replica):
            assert any(id.encode() in file.read_bytes() for file in node.directory.rglob("*.aof"))


async def test_what_a_server_can_never_confirm_is_refused_before_anything_is_stored(
    short_path: Path,
) -> None:
    for kind, why in ((Kind.REDIS_7_0, "unknown command"), (Kind.VALKEY_9_1, "appendonly")):
        with Node(kind, short_path / kind, port=free_ports(1)[0]) as node:
            async with MessageQueue(f"redis://{node.address}") as mq:
                with pytest.raises(InvalidInput, match=f"nothing was stored: .*{why}"):
                    await mq.produce(TOPIC, 1, confirm="fsynced")
                assert await ids_on(node) == set()


@pytest.mark.parametrize("confirm", ["", "replicated!", 1, True])
async def test_a_level_that_nobody_knows_is_refused(alone: Node, confirm: Any) -> None:
    async with MessageQueue(f"redis://{alone.address}") as mq:
        with pytest.raises(InvalidInput, match=r"confirm=.* is not one of stored, replicated"):
            await mq.produce(TOPIC, 1, confirm=confirm)
        with pytest.raises(InvalidInput, match=r"confirm=.* is not one of stored, replicated"):
            await mq.produce_many(TOPIC, [1], confirm=confirm)
    with pytest.raises(InvalidInput, match="confirm"):
        MessageQueue(f"redis://{alone.address}", confirm=confirm)


async def test_what_replication_had_not_carried_over_is_lost_and_confirm_had_said_so(
    short_path: Path,
) -> None:
    async with (
        Watched(short_path, replicas=1) as watched,
        MessageQueue(watched.url, confirm_within=20) as sure,
        MessageQueue(watched.url, confirm_within=0.2, patience=20) as mq,
    ):
        kept = [await sure.produce(TOPIC, 1, confirm="replicated") for _ in range(10)]
        primary = await watched.primary()
        await primary.ask("ACL", "SETUSER", "default", "-psync", "-sync")
        await primary.ask("CLIENT", "KILL", "TYPE", "replica")
        stored = [await mq.produce(TOPIC, 2) for _ in range(10)]
        with pytest.raises(NotConfirmed) as caught:
            await mq.produce(TOPIC, 3, confirm="replicated")
        primary.kill()
        promoted = await watched.until_promoted(primary)
        assert await ids_on(promoted.node) == set(kept)
        lost = {*stored, *caught.value.ids}
        assert len(lost) == 11
        after = await mq.produce(TOPIC, 4)
        assert await ids_on(promoted.node) == {*kept, after}


async def test_who_waits_for_replicas_holds_up_nobody_else(alone: Node) -> None:
    async with MessageQueue(f"redis://{alone.address}", confirm_within=30) as mq:
        await mq.produce("other", 0)
        waiting = [
            asyncio.create_task(mq.produce_many(TOPIC, [1], confirm="replicated"))
            for _ in range(80)
        ]
        await asyncio.sleep(0.3)
        await mq.produce("other", 1)
        assert not any(task.done() for task in waiting)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_unconfirmed_ids_come_in_the_order_of_the_payloads(alone: Node) -> None:
    async with MessageQueue(f"redis://{alone.address}", confirm_within=0.05) as mq:
        await mq.store.register_topics({TOPIC: 4})
        payloads = [f"payload-{number}" for number in range(12)]
        with pytest.raises(NotConfirmed) as caught:
            await mq.produce_many(
                TOPIC,
                payloads,
                keys=[str(number % 5) for number in range(12)],
                confirm="replicated",
            )
        views = [await mq.admin.get(TOPIC, id) for id in caught.value.ids]
        assert [view.payload for view in views if view is not None] == payloads
