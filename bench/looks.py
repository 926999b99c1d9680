"""What an operator asks of a full queue: each page of the dashboard, each call of `mq.admin`.

Each is requested several times; the first time counts, too. Meanwhile the server's slow log records
what takes longer than a moment, so we know how long each script took.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from collections import defaultdict
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlencode

import httpx
from redis.asyncio import Redis

from bench.crowd import LONG, NOTHING, RARE, RARE_ERROR, STATES, TOPIC, cursor, queue
from mx_rmq.admin import Filter
from mx_rmq.core.message import State
from mx_rmq.dashboard.search import moment
from mx_rmq.metrics import Depth, render
from mx_rmq.store.script import load, names

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from bench.crowd import Crowd
    from mx_rmq.admin import Admin
    from mx_rmq.queue import MessageQueue

    Call = Callable[[], Awaitable[object]]

PAGE: Final = 50
"""Messages on a page of the dashboard."""
ENTRIES: Final = 100_000
SEEN_US: Final = 200
"""Microseconds from which on the slow log records a script or a command."""
PAGE_MS: Final = 300.0
SCRIPT_MS: Final = 5.0
"""The goals in ms: a page, and a script or a command on the server."""


@dataclass(slots=True)
class Times:
    """How long things took, ms, by name."""

    pages: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    calls: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    long: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Work on thousands of messages, which has no goal."""
    server: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Scripts and commands on the server that took long enough to be recorded."""
    commands: int = 0
    """How many there were in total."""
    longest: dict[str, tuple[float, str]] = field(default_factory=dict)
    """How long each of them took at most, and which page was requested at the time."""

    def summary(self) -> dict[str, Any]:
        """Return the median and the maximum of everything."""
        return {
            "pages": {name: _summary(found) for name, found in self.pages.items()},
            "calls": {name: _summary(found) for name, found in self.calls.items()},
            "long": {name: _summary(found) for name, found in self.long.items()},
            "server": {
                name: {
                    "over 1": sum(one > 1 for one in found),
                    "over 5": sum(one > SCRIPT_MS for one in found),
                    "worst": max(found),
                    "during": self.longest[name][1],
                }
                for name, found in self.server.items()
            },
            "commands": self.commands,
        }


def _summary(found: list[float]) -> dict[str, float]:
    ordered = sorted(found)
    return {
        "count": len(ordered),
        "median": statistics.median(ordered),
        "worst": ordered[-1],
    }


class SlowLog:
    """What takes the server longer than a moment, by name."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._counted = 0
        self._scripts = {load(name).sha: name for name in names()}

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator[Self]:
        async with Redis.from_url(url, protocol=3) as redis:
            await redis.config_set("slowlog-max-len", ENTRIES)
            await redis.config_set("slowlog-log-slower-than", SEEN_US)
            try:
                yield cls(redis)
            finally:
                await redis.config_set("slowlog-log-slower-than", 10_000)

    async def take(self, times: Times, beside: str) -> None:
        """Add what the log has since the last time."""
        async with self._redis.pipeline() as pipe:
            pipe.execute_command("SLOWLOG", "GET", ENTRIES)
            pipe.execute_command("SLOWLOG", "RESET")
            pipe.execute_command("INFO", "stats")
            log, _, info = await pipe.execute()
        counted = int(info["total_commands_processed"])
        times.commands += counted - (self._counted or counted)
        self._counted = counted
        for _, _, micros, words, *_ in log:
            took, name = micros / 1000, self._name(words)
            if not name:
                continue
            if took >= times.longest.get(name, (0.0, ""))[0]:
                times.longest[name] = (took, beside)
            times.server[name].append(took)

    def _name(self, words: list[bytes]) -> str:
        """Return the command; nothing for our own requests, and for one that only waited."""
        if not words:
            return ""
        command = words[0].decode().upper()
        if command in ("EVALSHA", "EVAL"):
            script = words[1].decode("utf-8", "replace")
            opening = re.match(r"-- (\w+):", script)
            return self._scripts.get(script, opening[1] if opening else "a script")
        return "" if command in _OURS else command


_OURS: Final = {"SLOWLOG", "CONFIG", "INFO", "HELLO", "CLIENT", "AUTH", "SELECT", "PING", "SCRIPT"}


class Looks:
    """An operator with a dashboard and a shell."""

    def __init__(
        self, mq: MessageQueue, web: httpx.AsyncClient, log: SlowLog, *, moving: bool
    ) -> None:
        """`moving`: messages may be gone when they are requested."""
        self.admin: Admin = mq.admin
        self._web = web
        self._moving = moving
        self._log = log
        self.times = Times()

    async def page(self, name: str, path: str, times: int, code: int = 200) -> None:
        """Request a page."""

        async def get() -> None:
            answer = await self._web.get(path)
            gone = self._moving and answer.status_code in (404, 409)
            if answer.status_code != code and not gone:
                raise RuntimeError(f"{path}: {answer.status_code}: {answer.text[-500:]}")

        await self._time(self.times.pages, name, get, times)

    async def call(self, name: str, call: Call, times: int) -> None:
        """Ask `mq.admin`."""
        await self._time(self.times.calls, name, call, times)

    async def work(self, name: str, call: Call) -> None:
        """Do something with thousands of messages, once."""
        await self._time(self.times.long, name, call, 1)

    async def _time(self, found: dict[str, list[float]], name: str, call: Call, times: int) -> None:
        for _ in range(times):
            began = time.perf_counter()
            await call()
            found[name].append((time.perf_counter() - began) * 1000)
        await self._log.take(self.times, name)

    async def look(self, crowd: Crowd, times: int) -> None:
        """Request everything."""
        await crowd.survey(self.admin)
        await self._log.take(Times(), "")
        for name, path, code in paths(crowd):
            await self.page(name, path, times, code)
        await self._job(crowd)
        for name, call in calls(self.admin, crowd).items():
            await self.call(name, call, times)
        depth = Depth(lambda: self.admin)

        async def scrape() -> None:
            depth._fresh_until = 0.0
            await depth.refresh()
            render(depth.registry, "")

        await self.call("metrics: depth", scrape, times)

    async def act(self, crowd: Crowd) -> None:
        """Act on many messages, and on one among them."""
        admin, some = self.admin, max(1, crowd.extent.messages // 100)
        fit, rare = Filter(error="timeout"), Filter(error=RARE_ERROR)
        pending = (await admin.list(TOPIC, State.PENDING, limit=1)).messages[0].id
        middle = cursor(State.PENDING, crowd.extent.messages // 2)
        deep = (await admin.list(TOPIC, State.PENDING, limit=1, cursor=middle)).messages[0].id
        await self._log.take(self.times, "looking for messages")
        await self.work("cancel the next pending message", lambda: admin.cancel(TOPIC, pending))
        await self.work("cancel one deep among the pending", lambda: admin.cancel(TOPIC, deep))
        await self.work("pause, then resume", self._pause)
        bulk: dict[str, Call] = {
            f"count {some:,} to requeue": lambda: admin.requeue_all(
                TOPIC, State.DEAD, limit=some, dry_run=True
            ),
            "count what has a rare error": lambda: admin.discard_all(
                TOPIC, State.DEAD, filter=rare, dry_run=True, limit=5
            ),
            f"requeue {some:,} dead letters": lambda: admin.requeue_all(
                TOPIC, State.DEAD, filter=fit, limit=some
            ),
            f"discard {some:,} dead letters": lambda: admin.discard_all(
                TOPIC, State.DEAD, limit=some
            ),
            f"discard {some:,} quarantined messages": lambda: admin.discard_all(
                TOPIC, State.QUARANTINED, limit=some
            ),
            f"cancel {some:,} pending messages": lambda: admin.cancel_all(
                TOPIC, State.PENDING, limit=some
            ),
            f"cancel {some:,} delayed messages": lambda: admin.cancel_all(
                TOPIC, State.DELAYED, limit=some
            ),
            "audit the topic": lambda: admin.audit(TOPIC),
        }
        for name, call in bulk.items():
            await self.work(name, call)

    async def _pause(self) -> None:
        await self.admin.pause(TOPIC)
        await self.admin.resume(TOPIC)

    async def _job(self, crowd: Crowd) -> None:
        """Start a job as a browser would, and request its page while it runs."""
        path = f"/topics/{TOPIC}/bulk"
        asked = {"act": "discard", "state": "dead", "error": "KeyError"}
        page = (await self._web.get(f"{path}?{urlencode(asked)}")).text
        token = re.findall(r'name="token" value="([^"]+)"', page)[0]
        some = str(max(1, crowd.extent.messages // 100))
        begun = await self._web.post(
            path,
            data={"token": token, **asked, "limit": some},
            headers={"Origin": str(self._web.base_url).rstrip("/")},
        )
        if begun.status_code != 303:
            raise RuntimeError(f"no job: {begun.status_code}: {begun.text[-500:]}")
        while True:
            began = time.perf_counter()
            shown = await self._web.get(begun.headers["location"])
            self.times.pages["a job that discards"].append((time.perf_counter() - began) * 1000)
            if "badge running" not in shown.text:
                break
            await asyncio.sleep(0.1)
        await self._log.take(self.times, "a job that discards")


def paths(crowd: Crowd) -> list[tuple[str, str, int]]:
    """Return every page: its name, its address, and the expected status."""
    found = [
        ("overview", "/", 200),
        ("topic", f"/topics/{TOPIC}", 200),
        ("keys of a topic", f"/topics/{TOPIC}/keys", 200),
        ("limits of a topic", f"/topics/{TOPIC}/limits", 200),
        ("a subscription that is nowhere", f"/topics/{TOPIC}/unsubscribe?name=none", 404),
        ("dead letters of all topics", "/dead", 200),
        ("the same, by a rare error", f"/dead?error={RARE_ERROR}", 200),
        ("the same, by a text that is nowhere", f"/dead?{urlencode({'text': NOTHING})}", 200),
        ("quarantine of all topics", "/quarantine", 200),
        ("workers", "/workers", 200),
        ("schedules", "/schedules", 200),
        ("a schedule that is nowhere", "/schedules/nightly", 404),
        ("the same, to be removed", "/schedules/nightly/unschedule", 404),
        ("log", "/log", 200),
        ("help", "/help", 200),
        ("charts: series", f"/live/series?topic={TOPIC}", 200),
        ("charts: sparks", "/live/sparks", 200),
        ("metrics", "/metrics", 200),
        ("health", "/healthz", 200),
        ("find an id that is nowhere", "/find?id=order-42", 200),
        ("a message that is nowhere", f"/topics/{TOPIC}/message?id=order-42", 404),
        ("messages of 1 MiB", f"/topics/{LONG}?state=pending&limit=200", 200),
    ]
    for state in STATES:
        found += [(f"{state}: {name}", path, code) for name, path, code in _of(crowd, state)]
    found.append(("processing: first page", f"/topics/{TOPIC}?state=processing", 200))
    return found


def _of(crowd: Crowd, state: State) -> list[tuple[str, str, int]]:
    """Return the pages about the messages of a state."""

    def listed(**query: object) -> str:
        query = {name: value for name, value in query.items() if value}
        return f"/topics/{TOPIC}?{urlencode({'state': state.value, **query})}"

    def about(page: str, id: str, **query: str) -> str:
        return f"/topics/{TOPIC}/{page}?{urlencode({'id': id, **query})}"

    archived = state in (State.DEAD, State.QUARANTINED)
    count = crowd.extent.quarantined if state is State.QUARANTINED else crowd.extent.messages
    low, high = (moment(at) for at in crowd.since[state])
    first, middle, last = crowd.ids[state]
    act = "discard" if archived else "cancel"
    bulk = {"act": act, "state": state.value}
    rare = {**bulk, "text": RARE}
    pages = [
        ("first page", listed()),
        ("page of 200", listed(limit=200)),
        ("second page", listed(cursor=cursor(state, PAGE))),
        ("deepest page", listed(cursor=cursor(state, max(1, count - PAGE)))),
        ("by a rare text", listed(text=RARE)),
        ("by a text that is nowhere", listed(text=NOTHING)),
        ("the same, from the middle on", listed(text=NOTHING, cursor=cursor(state, count // 2))),
        ("by time", listed(since=low, until=high)),
        ("the last 15 minutes", listed(last="15m")),
        ("first message", about("message", first)),
        ("middle message", about("message", middle)),
        ("last message", about("message", last)),
        ("bytes of a message", about("raw", middle)),
        (f"{act} one?", about(act, middle)),
        (f"{act} all?", f"/topics/{TOPIC}/bulk?{urlencode(bulk)}"),
        (
            f"{act} those with a rare text?",
            f"/topics/{TOPIC}/bulk?{urlencode(rare)}",
        ),
    ]
    if not archived:
        pages.append(("abort one?", about("abort", middle)))
    if archived:
        pages += [
            ("by a frequent error", listed(error="Error")),
            ("by a rare error", listed(error=RARE_ERROR)),
            ("edit one", about("edit", middle)),
        ]
    return [
        *((name, path, 200) for name, path in pages),
        ("find the middle one", f"/find?{urlencode({'id': middle})}", 303),
    ]


def calls(admin: Admin, crowd: Crowd) -> dict[str, Call]:
    """Return the calls of `mq.admin`."""
    found: dict[str, Call] = {
        "topics": admin.topics,
        "stats": lambda: admin.stats(TOPIC),
        "workers": admin.workers,
        "find": lambda: admin.find(crowd.ids[State.DEAD][1]),
        "find, nowhere": lambda: admin.find("order-42"),
        "list 1,000 messages of 1 MiB": lambda: admin.list(LONG, State.PENDING, limit=1000),
    }
    for state in STATES:
        found |= {f"{state}: {name}": call for name, call in _calls(admin, crowd, state).items()}
    return found


def _calls(admin: Admin, crowd: Crowd, state: State) -> dict[str, Call]:
    count = crowd.extent.quarantined if state is State.QUARANTINED else crowd.extent.messages
    low, high = crowd.since[state]
    middle = crowd.ids[state][1]
    deep, nothing = cursor(state, max(1, count - PAGE)), Filter(text=NOTHING)
    return {
        "list 100": lambda: admin.list(TOPIC, state),
        "list 1,000": lambda: admin.list(TOPIC, state, limit=1000),
        "list the last": lambda: admin.list(TOPIC, state, cursor=deep),
        "list by text": lambda: admin.list(TOPIC, state, filter=Filter(text=RARE)),
        "list by text, nowhere": lambda: admin.list(TOPIC, state, filter=nothing),
        "list by time": lambda: admin.list(TOPIC, state, filter=Filter(since=low, until=high)),
        "count": lambda: admin.count(TOPIC, state),
        "count by time": lambda: admin.count(TOPIC, state, since=low, until=high),
        "get": lambda: admin.get(TOPIC, middle),
        "history": lambda: admin.history(TOPIC, middle),
    }


@asynccontextmanager
async def operator(url: str, prefix: str, web: str, *, moving: bool) -> AsyncIterator[Looks]:
    """An operator of a queue, with its dashboard at this address."""
    async with (
        queue(url, prefix) as mq,
        SlowLog.open(url) as log,
        httpx.AsyncClient(base_url=web, timeout=30) as client,
    ):
        yield Looks(mq, client, log, moving=moving)
