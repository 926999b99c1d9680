"""Releases beside each other: workers of the last one that landed, of this one, and of the next."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from mx_rmq import Delivery, MessageQueue, ResultUnknown, Worker
from mx_rmq.core import codec, events, steps
from mx_rmq.core.message import State
from mx_rmq.store.keys import LAYOUT
from tests.lab import crew
from tests.lab.appended import whole_lines
from tests.lab.releases import ATTEMPTS, ROOT, TOPIC, dies, errand, start, unpack_last
from tests.lab.servers import Kind, chosen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from redis.asyncio import Redis

    from mx_rmq.store.audit import Violation
    from tests.lab.servers import Server

pytestmark = pytest.mark.parametrize("kind", chosen(Kind.VALKEY_9_1))

UNKNOWN_TO_THE_LAST = (
    "an expiry time, but it is not waiting",
    "waits for signals, but is not delayed",
    "awaits signals, but is not waiting",
    "has signals, but is gone",
)
"""Words of audit findings about keys that the last release does not know, so its workers cannot
keep them. They may be left beside such workers; a repair must fix them, and nothing else may be."""


until = partial(crew.until, seconds=60)
"""Processes take long to start on a busy machine."""


@pytest.fixture(scope="session")
def last(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the last release."""
    return unpack_last(tmp_path_factory.mktemp("last"))


class Lines:
    """What the processes have written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.touch()

    def of(self, what: str) -> list[tuple[str, int, int]]:
        """Return release, number and attempt of each line."""
        lines = [line.decode().split() for line in whole_lines(self.path)]
        return [(one[1], int(one[2]), int(one[3])) for one in lines if one[0] == what]

    def has(self, what: str, count: int) -> bool:
        return len(self.numbers(what)) >= count

    def numbers(self, what: str) -> set[int]:
        return {number for _, number, _ in self.of(what)}


class Fleet:
    """Processes of several releases on one server."""

    def __init__(self, url: str, lines: Lines, last: Path | None) -> None:
        self.url = url
        self.lines = lines
        self.all: list[Any] = []
        self._sources = {"last": last, "this": ROOT / "src", "next": ROOT / "src"}

    def start(self, release: str, role: str, *numbers: int) -> Any:
        source = self._sources[release]
        assert source is not None
        self.all.append(start(source, release, role, self.url, self.lines.path, *numbers))
        return self.all[-1]

    async def end(self, process: Any, number: signal.Signals) -> int:
        process.send_signal(number)
        code: int = await asyncio.to_thread(process.wait, 20)
        return code

    async def over(self, process: Any) -> None:
        """Wait until a producer has produced everything."""
        assert await asyncio.to_thread(process.wait, 30) == 0, process.log.read_text()


@asynccontextmanager
async def fleet(url: str, directory: Path, last: Path | None = None) -> AsyncIterator[Fleet]:
    ships = Fleet(url, Lines(directory / "history"), last)
    try:
        yield ships
    finally:
        for one in ships.all:
            if one.poll() is None:
                one.kill()
                one.wait(20)


def beside_old_workers(found: list[Violation]) -> list[Violation]:
    """Return what must not be, also beside workers of the last release."""
    return [one for one in found if not any(word in one.what for word in UNKNOWN_TO_THE_LAST)]


async def is_idle(mq: MessageQueue) -> bool:
    stats = await mq.admin.stats(TOPIC)
    return not (stats.pending or stats.delayed or stats.processing)


async def test_workers_and_producers_of_the_last_release_work_beside_those_of_this_one(
    raw: Redis, server: Server, tmp_path: Path, last: Path
) -> None:
    count = 200
    async with MessageQueue(server.url) as mq, fleet(server.url, tmp_path, last) as ships:
        lines = ships.lines
        workers = {release: ships.start(release, "worker") for release in ("last", "this")}
        producers = [
            ships.start(one, "producer", n * count, count) for n, one in enumerate(("last", "this"))
        ]
        for stage, release in enumerate(("last", "this"), 1):
            await until(partial(lines.has, "done", stage * count // 3))
            await ships.end(workers[release], signal.SIGKILL)
            workers[release] = ships.start(release, "worker")
            assert beside_old_workers(await mq.admin.audit(TOPIC)) == []
        for producer in producers:
            await ships.over(producer)
        await until(lambda: is_idle(mq))
        made = lines.numbers("made")
        assert made == set(range(2 * count))
        assert lines.numbers("done") == {number for number in made if not dies(number)}
        by = Counter(release for release, _, _ in lines.of("done"))
        assert by["last"] > count // 10
        assert by["this"] > count // 10

        assert await raw.get(mq.store.keys.layout) == str(LAYOUT).encode()

        # Dead letters go round again, whichever release buried them, and die again.
        stats = await mq.admin.stats(TOPIC)
        dead = sum(map(dies, made))
        assert (stats.dead, stats.quarantined, stats.dropped) == (dead, 0, 0)
        assert await mq.admin.requeue_all(TOPIC, State.DEAD) == dead
        await until(lambda: is_idle(mq))
        stats = await mq.admin.stats(TOPIC)
        assert (stats.dead, stats.quarantined, stats.dropped) == (dead, 0, 0)
        letters = await mq.admin.list(TOPIC, State.DEAD, limit=1000)
        assert all(one.reason.startswith("exhausted") for one in letters.messages)
        assert all(one.attempts - one.crashes == ATTEMPTS for one in letters.messages)

        for worker in ships.all:
            if worker.poll() is None:
                assert await ships.end(worker, signal.SIGTERM) == 0, worker.log.read_text()
        assert beside_old_workers(await mq.admin.audit(TOPIC)) == []
        await mq.admin.repair(TOPIC)
        assert await mq.admin.audit(TOPIC) == []


async def test_messages_of_the_next_release_wait_for_its_workers_uncounted(
    raw: Redis, server: Server, tmp_path: Path
) -> None:
    count = 40
    async with MessageQueue(server.url) as mq, fleet(server.url, tmp_path) as ships:
        lines = ships.lines
        old = ships.start("this", "worker")
        await ships.over(ships.start("next", "producer", 0, count))
        await until(lambda: "upgrade this worker" in old.log.read_text())

        async def all_postponed() -> bool:
            stats = await mq.admin.stats(TOPIC)
            return stats.totals.postponed >= count and stats.delayed > 0

        await until(all_postponed)
        assert lines.of("done") == []
        stats = await mq.admin.stats(TOPIC)
        assert (stats.total, stats.dead, stats.quarantined) == (count, 0, 0)
        assert (stats.totals.retried, stats.totals.failed) == (0, 0)
        waiting = await mq.admin.list(TOPIC, State.DELAYED)
        assert all(one.newer for one in waiting.messages)

        ships.start("next", "worker")  # the upgrade: it comes, and the other one goes
        await until(lambda: lines.of("done"))
        assert await ships.end(old, signal.SIGTERM) == 0, old.log.read_text()
        await until(lambda: is_idle(mq))
        done = lines.of("done")
        assert {number for _, number, _ in done} == {n for n in range(count) if not dies(n)}
        assert {release for release, _, _ in done} == {"next"}
        stats = await mq.admin.stats(TOPIC)
        assert (stats.quarantined, stats.dropped) == (0, 0)
        assert stats.dead == sum(dies(number) for number in range(count))
        assert await mq.admin.audit(TOPIC) == []
        assert old.log.read_text().count("upgrade this worker") == 1


async def test_a_worker_of_the_last_release_never_runs_a_message_with_steps(
    raw: Redis, server: Server, tmp_path: Path, last: Path
) -> None:
    """It cannot tell which steps are done. It quarantines the message, and nothing is lost."""
    async with MessageQueue(server.url) as mq, fleet(server.url, tmp_path, last) as ships:
        done = steps.Steps(done={"charge": msgspec.Raw(b"1")})
        id = await mq.produce(TOPIC, errand(1), delay=600)
        record = codec.decode(await mq.store.views.record(TOPIC, id) or b"")
        noted = codec.encode(steps.write(record, done))
        await raw.hset(mq.store.keys.of(TOPIC).payload, id, noted)
        assert await mq.signal(TOPIC, id, "approval", 1)
        await mq.reschedule(TOPIC, id, delay=0)
        old = ships.start("last", "worker")

        async def quarantined() -> bool:
            return (await mq.admin.stats(TOPIC)).quarantined == 1

        await until(quarantined)
        assert ships.lines.of("done") == []
        assert await ships.end(old, signal.SIGTERM) == 0, old.log.read_text()
        assert await mq.admin.audit(TOPIC) == []
        await mq.admin.requeue(TOPIC, id)
        again = codec.decode(await mq.store.views.record(TOPIC, id) or b"")
        assert (steps.read(again), again.v) == (done, 2)
        assert await mq.store.signals_of(TOPIC, id) == {"approval": b"1"}
        ships.start("this", "worker")
        await until(lambda: ships.lines.of("done"))
        await until(lambda: is_idle(mq))
        assert await mq.admin.audit(TOPIC) == []


async def dump(raw: Redis) -> dict[Any, tuple[Any, int]]:
    """Return every key as it is now: its contents, and when it goes, ms."""
    keys: list[Any] = await raw.keys("*")
    return {key: (await raw.dump(key), max(0, await raw.pexpiretime(key))) for key in keys}


async def restore(raw: Redis, copy: dict[Any, tuple[Any, int]]) -> None:
    """Go back to an earlier state, in one step."""
    async with raw.pipeline(transaction=True) as pipeline:
        step: Any = pipeline
        step.flushall()
        for key, (contents, goes_at) in copy.items():
            step.restore(key, goes_at, contents, absttl=True)
        await step.execute()


async def test_a_restored_older_state_means_what_the_page_says(raw: Redis, server: Server) -> None:
    async with MessageQueue(server.url, lease=1.0) as mq:
        fences: dict[str, list[int]] = {}
        slow = asyncio.Event()

        @mq.handler(TOPIC)
        async def handle(payload: str, delivery: Delivery) -> None:
            fences.setdefault(delivery.id, []).append(delivery.fence)
            if payload == "slow":
                await slow.wait()

        def runs() -> dict[str, int]:
            return {id: len(tokens) for id, tokens in fences.items()}

        await mq.produce(TOPIC, "quick", id="before")
        copy = await dump(raw)
        async with Worker(mq):
            await mq.produce(TOPIC, "quick", id="after")
            await mq.produce(TOPIC, "slow", id="held")
            await until(lambda: runs() == {"before": 1, "after": 1, "held": 1})
            await until(lambda: processing(mq, 1))
            lost = asyncio.get_running_loop().create_future()
            mq.events.subscribe(lost.set_result, events.LeaseLost)
            await restore(raw, copy)

            # What was held is gone, and its worker hears of it.
            assert (await asyncio.wait_for(lost, 20)).id == "held"
            # What was finished runs again, under a higher token.
            await until(lambda: runs()["before"] == 2)
            assert fences["before"] == sorted(fences["before"])
            assert max(fences["before"]) == max(token for some in fences.values() for token in some)
            # What was produced since is gone, and so is what was known of its id.
            await mq.produce(TOPIC, "quick", id="after")
            await until(lambda: runs()["after"] == 2)
            # What was known before still is: this id is within its dedup window.
            await mq.produce(TOPIC, "quick", id="before")
            await until(lambda: is_idle(mq))
        assert runs() == {"before": 2, "after": 2, "held": 1}
        assert await mq.admin.audit(TOPIC) == []


async def processing(mq: MessageQueue, count: int) -> bool:
    return (await mq.admin.stats(TOPIC)).processing == count


@pytest.mark.parametrize("heir", ["last", "this"])
async def test_a_message_replaced_under_a_worker_of_the_last_release_runs_alone(
    raw: Redis, server: Server, tmp_path: Path, last: Path, heir: str
) -> None:
    """That worker loses its lease; whichever release takes over, the new payload runs once."""
    async with MessageQueue(server.url) as mq, fleet(server.url, tmp_path, last) as ships:
        old = ships.start("last", "worker")
        await mq.produce(TOPIC, {"number": 1, "fails": 0, "work": 30}, id="own")
        await until(lambda: processing(mq, 1))
        new = {"number": 2, "fails": 0, "work": 0}
        await mq.produce(TOPIC, new, id="own", on_duplicate="replace")
        if heir == "this":
            await ships.end(old, signal.SIGKILL)
            ships.start("this", "worker")
        await until(partial(ships.lines.has, "done", 1))
        await until(lambda: is_idle(mq))
        ((release, number, attempt),) = ships.lines.of("done")
        assert (release, number) == (heir, 2)
        assert heir == "last" or attempt == 1  # this release counts no crash of the old payload
        assert await mq.admin.audit(TOPIC) == []


async def test_callers_wait_for_results_beside_a_worker_of_the_last_release(
    raw: Redis, server: Server, tmp_path: Path, last: Path
) -> None:
    """What that worker completes has no result, and the caller is told so."""
    async with MessageQueue(server.url) as mq, fleet(server.url, tmp_path, last) as ships:
        ships.start("last", "worker")

        @mq.handler(TOPIC, result_ttl=60)
        async def handle(payload: dict[str, Any]) -> int:
            await asyncio.sleep(payload["work"])
            return int(payload["number"])

        errands = [{"number": number, "fails": 0, "work": 0.01} for number in range(100)]
        await mq.produce(TOPIC, {"number": 100, "fails": 0, "work": 0})
        await until(partial(ships.lines.has, "done", 1))
        async with Worker(mq, concurrency=5):
            ids = await mq.produce_many(TOPIC, errands)
            waiting = (mq.result(TOPIC, id, timeout=30) for id in ids)
            found = await asyncio.gather(*waiting, return_exceptions=True)
        theirs = ships.lines.numbers("done")
        for number, one in enumerate(found):
            assert isinstance(one, ResultUnknown) if number in theirs else one == number
        assert await mq.admin.audit(TOPIC) == []


async def test_a_message_that_a_worker_of_the_last_release_runs_can_be_aborted(
    raw: Redis, server: Server, tmp_path: Path, last: Path
) -> None:
    async with MessageQueue(server.url) as mq, fleet(server.url, tmp_path, last) as ships:
        ships.start("last", "worker")
        id = await mq.produce(TOPIC, {"number": 1, "fails": 0, "work": 1.5})
        await until(lambda: processing(mq, 1))
        assert await mq.admin.abort(TOPIC, id, "enough")
        await mq.produce(TOPIC, {"number": 2, "fails": 0, "work": 1.5})
        await until(partial(ships.lines.has, "done", 1))
        assert ships.lines.numbers("done") == {2}  # it lost its lease, and stopped the first
        (dead,) = (await mq.admin.list(TOPIC, State.DEAD)).messages
        assert (dead.id, dead.reason) == (id, "aborted: enough")
        assert await mq.admin.audit(TOPIC) == []
