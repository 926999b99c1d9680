"""Over TLS everything works, and a certificate that is refused is named at once."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, NamedTuple

import pytest

from mx_rmq import MessageQueue, ServerUnavailable
from tests.lab.crew import PLAIN, TOPIC, crew, until
from tests.lab.nodes import Node
from tests.lab.ports import free_ports
from tests.lab.servers import Kind
from tests.lab.tls import HOSTS, Authority, Pair, Tls, trust

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.lab.crew import History, Member

    Start = Callable[..., Node]

KIND = Kind.REDIS_7_0
"""Of the usual servers the only one that was built with TLS."""

LEASE = 3.0
"""Seconds. The keeper has a third to connect, which takes half a second on a busy machine."""

PATIENCE = 30.0
AT_ONCE = 8.0
"""Seconds; a call that waits for patience to end takes longer."""


class Papers(NamedTuple):
    """Two authorities of which nobody trusts the second, and what they have issued."""

    ours: Authority
    theirs: Authority
    server: Pair
    client: Pair


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    directory = tmp_path_factory.mktemp("papers")
    ours, theirs = Authority(directory / "ours"), Authority(directory / "theirs")
    return Papers(ours, theirs, ours.issue(*HOSTS), ours.issue("client"))


@pytest.fixture
def start(papers: Papers, short_path: Path) -> Iterator[Start]:
    """Start a server that shows a certificate."""
    started: list[Node] = []

    def start(server: Pair = papers.server, *, clients: bool = False) -> Node:
        tls = Tls(papers.ours, server, clients)
        started.append(Node(KIND, short_path, port=free_ports(1)[0], tls=tls))
        return started[-1].start()

    yield start
    for node in started:
        node.kill()


def handled(history: History, ids: list[str]) -> bool:
    return set(ids) <= set(history.ids("end"))


@pytest.mark.parametrize("clients", [False, True], ids=["server's", "both sides'"])
async def test_producers_workers_doorbells_and_leases_work_over_tls(
    papers: Papers, start: Start, tmp_path: Path, *, clients: bool
) -> None:
    node = start(clients=clients)
    url = f"rediss://{node.address}?{trust(papers.ours, papers.client if clients else None)}"
    async with MessageQueue(url) as mq:
        with crew(url, tmp_path) as (begin, history):
            member: Member = begin(lease=LEASE)
            member.until_ready()
            began = time.monotonic()
            ids = await mq.produce_many(TOPIC, [{}] * 50)
            ids.append(await asyncio.to_thread(mq.sync.produce, PLAIN, {}))
            ids.append(await mq.produce(TOPIC, {}, delay=0.2))
            await until(lambda: handled(history, ids))
            assert time.monotonic() - began < AT_ONCE  # by doorbells: looking around takes longer
            (id,) = long = [await mq.produce(TOPIC, {"sleep": 2 * LEASE})]
            await until(lambda: handled(history, long))
            assert history.ids("start").count(id) == 1, member.output()  # extended more than once
            assert "ERROR" not in member.output()
        for topic in await mq.admin.topics():
            assert await mq.admin.audit(topic) == []


async def refusal(url: str) -> str:
    began = time.monotonic()
    with pytest.raises(ServerUnavailable) as refused:
        async with MessageQueue(url, patience=PATIENCE):
            pass
    assert time.monotonic() - began < AT_ONCE, refused.value
    return str(refused.value)


async def test_a_server_certificate_of_another_authority_is_refused(
    papers: Papers, start: Start
) -> None:
    node = start()
    assert "certificate verify failed" in await refusal(
        f"rediss://{node.address}?{trust(papers.theirs)}"
    )
    assert "certificate verify failed" in await refusal(f"rediss://{node.address}")


async def test_an_expired_server_certificate_is_refused(papers: Papers, start: Start) -> None:
    node = start(papers.ours.issue(*HOSTS, expired=True))
    assert "certificate has expired" in await refusal(
        f"rediss://{node.address}?{trust(papers.ours)}"
    )


async def test_a_server_certificate_for_another_host_is_refused_unless_told_otherwise(
    papers: Papers, start: Start
) -> None:
    node = start(papers.ours.issue("elsewhere.example"))
    by_address = f"rediss://{node.address}?{trust(papers.ours)}"
    assert "not valid for '127.0.0.1'" in await refusal(by_address)
    by_name = f"rediss://localhost:{node.port}?{trust(papers.ours)}"
    assert "not valid for 'localhost'" in await refusal(by_name)
    async with MessageQueue(f"{by_address}&ssl_check_hostname=false") as mq:
        await mq.produce(TOPIC, {})


async def test_a_server_says_that_it_wants_a_client_certificate(
    papers: Papers, start: Start
) -> None:
    node = start(clients=True)
    assert "certificate required" in await refusal(f"rediss://{node.address}?{trust(papers.ours)}")


async def test_a_server_says_what_it_dislikes_about_a_client_certificate(
    papers: Papers, start: Start
) -> None:
    node = start(clients=True)
    for pair, cause in (
        (papers.theirs.issue("client"), "unknown ca"),
        (papers.ours.issue("client", expired=True), "certificate expired"),
    ):
        url = f"rediss://{node.address}?{trust(papers.ours, pair)}"
        assert cause in await refusal(url)


async def test_a_worker_survives_a_certificate_that_was_bad_for_a_while(
    papers: Papers, start: Start, tmp_path: Path
) -> None:
    node = start()
    url = f"rediss://{node.address}?{trust(papers.ours)}"
    with crew(url, tmp_path) as (begin, history):
        member: Member = begin(lease=LEASE)
        member.until_ready()
        await show(node, papers.theirs.issue(*HOSTS))
        await until(lambda: "the server is unreachable" in member.output())
        assert "certificate verify failed" in member.output()
        await show(node, papers.server)
        async with MessageQueue(url) as mq:
            ids = [await mq.produce(TOPIC, {})]
            await until(lambda: handled(history, ids))
        assert member.output().count("the server is back") == 1


async def show(node: Node, pair: Pair) -> None:
    """Let a server show another certificate to everybody from now on."""
    files = ("tls-cert-file", str(pair.certificate), "tls-key-file", str(pair.key))
    await node.ask("CONFIG", "SET", *files)
    await node.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
