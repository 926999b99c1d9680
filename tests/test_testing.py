"""The testing kit: what it does to a queue, and how it behaves in a project of a user's own."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from redis import Redis

from mx_rmq import (
    ByError,
    Delivery,
    InvalidInput,
    MessageQueue,
    Middleware,
    Reject,
    Retry,
    Worker,
    testing,
)
from mx_rmq.store.delete_keys import wipe
from mx_rmq.testing import ANY, Containing
from mx_rmq.testing.fixtures import named

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mx_rmq.core.middleware import Handle, Produce
    from mx_rmq.core.outgoing import Outgoing

    Use = Callable[..., MessageQueue]
    Run = Callable[..., pytest.RunResult]

pytest_plugins = ["pytester", "mx_rmq.testing"]

NOWHERE = "redis://nowhere.invalid:6379/0"


@dataclass
class Order:
    id: int
    customer: str = "ann"


@pytest.fixture
def shop() -> MessageQueue:
    """The queue of an application, whose server is not here."""
    mq = MessageQueue(NOWHERE)

    @mq.handler("order.created")
    async def confirm(order: Order) -> None:
        await mq.produce("mail", {"to": order.customer, "order": order.id}, priority="high")

    return mq


@pytest.fixture
def mq(shop: MessageQueue, mx_rmq_use: Use) -> MessageQueue:
    """The same, in test mode."""
    return mx_rmq_use(shop)


# producing and draining


def test_a_plain_test_produces_and_drains(mq: MessageQueue) -> None:
    mq.sync.produce("order.created", Order(1))
    assert testing.drain(mq).completed == 1
    testing.assert_produced(mq, "mail", {"to": "ann", "order": 1})
    assert mq.sync.call(lambda mq: mq.admin.stats("mail")).pending == 1


async def test_an_async_block_opens_the_queue_on_a_server_of_its_own(shop: MessageQueue) -> None:
    async with testing.use(shop) as mq:
        assert mq is shop
        socket = Path(mq.settings.url.removeprefix("unix://"))
        assert socket.exists()
        await mq.produce("order.created", Order(1))
        assert (await Worker(mq).drain()).completed == 1
        testing.assert_produced(mq, "mail", {"to": "ann", "order": 1})
    assert not mq.is_open
    assert not socket.parent.exists()


async def test_a_server_that_cannot_be_reached_leaves_the_queue_as_it_was(
    shop: MessageQueue, tmp_path: Path
) -> None:
    shop.settings = replace(shop.settings, patience=0)
    before = dict(vars(shop))
    with pytest.raises(Exception, match="cannot use unix://"):
        async with testing.use(shop, f"unix://{tmp_path}/none"):
            pass
    assert vars(shop) == before


def test_drain_works_where_the_queue_is_open_in_another_thread(mq: MessageQueue) -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def there(work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result()

    there(mq.open())
    there(mq.produce("order.created", Order(1)))
    assert testing.drain(mq).completed == 1
    there(mq.close())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    testing.assert_produced(mq, "mail")


async def test_drain_says_what_to_do_in_an_async_test(mq: MessageQueue) -> None:
    with pytest.raises(InvalidInput, match=r"use `await Worker\(mq\)\.drain\(\)`$"):
        testing.drain(mq)


def test_crons_do_not_tick_but_can_be_produced(mx_rmq_use: Use) -> None:
    mq = MessageQueue(NOWHERE)
    runs = []

    @mq.cron("* * * * *", topic="minutely")
    def tick() -> None:
        runs.append(1)

    mx_rmq_use(mq)
    assert mq.crons == {}
    mq.sync.produce("minutely", None)
    assert testing.drain(mq).completed == 1
    assert runs == [1]


# what was produced


def test_an_application_factory_does_not_move_the_queue_away(mq: MessageQueue) -> None:
    mq.move(url="redis://the-real-one", prefix="real")
    mq.sync.produce("order.created", Order(1))
    assert testing.drain(mq).completed == 1
    with pytest.raises(InvalidInput):
        mq.move(url="http://wrong")


def test_a_failure_lists_what_was_produced_instead(mq: MessageQueue) -> None:
    mq.sync.produce("mail", {"to": "ann", "order": 1}, priority="high")
    mq.sync.produce("mail", {"to": "bob", "order": 2}, headers={"a": "b"})
    mq.sync.produce_many("order.created", [Order(1), Order(2)], delay=60)
    with pytest.raises(AssertionError) as failure:
        testing.assert_produced(mq, "mail", {"to": "bob"}, priority="high")
    assert str(failure.value).splitlines() == [
        "'mail' with payload {'to': 'bob'}, priority='high' was never produced",
        "Produced to 'mail': 2",
        "  1. {'to': 'ann', 'order': 1}  priority='high'",
        "  2. {'to': 'bob', 'order': 2}  headers={'a': 'b'}",
        "Produced to other topics: 'order.created' 2",
    ]


def test_a_failure_says_how_often_it_was_produced(mq: MessageQueue) -> None:
    nothing = "Produced to 'mail': nothing\nProduced to other topics: nothing"
    with pytest.raises(AssertionError, match=f"^'mail' was never produced, not once\n{nothing}$"):
        testing.assert_produced(mq, "mail", times=1)
    mq.sync.produce("mail", 1)
    with pytest.raises(AssertionError, match=r"^'mail' was produced once, not 2 times\n"):
        testing.assert_produced(mq, "mail", times=2)
    mq.sync.produce("mail", 1)
    with pytest.raises(AssertionError, match=r"^'mail' with payload 1 was produced 2 times\n"):
        testing.assert_not_produced(mq, "mail", 1)
    mq.sync.produce_many("mail", range(28))
    with pytest.raises(AssertionError, match=r"\n  20\. 17\n  and 10 more\n"):
        testing.assert_produced(mq, "mail", 30)


def test_an_option_that_produce_does_not_have_is_refused(mq: MessageQueue) -> None:
    with pytest.raises(TypeError, match=r"^'prio' is not an option of produce: id, delay, "):
        testing.assert_not_produced(mq, "mail", prio="high")


def test_payloads_and_options_are_compared_by_what_they_mean(mq: MessageQueue) -> None:
    listed: list[Any] = [Order(1), 0.1 + 0.2]
    at = datetime(2100, 1, 1, tzinfo=UTC)
    id = mq.sync.produce(
        "t",
        {"list": listed, 7: {"deep": {"a": 1, "b": 2}}},
        headers={"a": "b", "c": "d"},
        retry=[1, 2],
        at=at,
    )
    listed.clear()  # what was produced stays what it was

    def saw(payload: Any = ANY, **options: Any) -> list[Outgoing]:
        return testing.assert_produced(mq, "t", payload, **options)

    saw({"list": [{"id": 1, "customer": "ann"}, ANY], "7": ANY})
    saw({"list": [Order(1), pytest.approx(0.3)], 7: Containing({"deep": mock.ANY})})
    saw(Containing({"7": {"deep": Containing({"b": 2})}}))
    saw(headers=Containing({"a": "b"}), retry=(1.0, 2.0), at=at, id=id)
    saw(at=at.timestamp(), delay=None, priority="normal", ttl=None, retry=ANY)
    (message,) = saw()
    assert message.id == id
    assert testing.produced(mq) == [message]
    wrongs: list[dict[str, Any]] = [
        {"payload": {"list": ANY}},
        {"payload": Containing({"8": ANY})},
        {"payload": Containing({"list": []})},
        {"headers": {"a": "b"}},
        {"retry": [1]},
        {"delay": 1},
        {"id": "other"},
    ]
    for wrong in wrongs:
        testing.assert_not_produced(mq, "t", **wrong)
        with pytest.raises(AssertionError):
            saw(**wrong)


class Stamp(Middleware):
    async def produce(self, messages: Sequence[Outgoing], call_next: Produce) -> list[str]:
        return await call_next([replace(one, headers={"by": "me"}) for one in messages])


def test_what_was_refused_is_not_recorded_and_middleware_has_its_say(mx_rmq_use: Use) -> None:
    mq = mx_rmq_use(MessageQueue(NOWHERE, middleware=[Stamp()]))
    mq.sync.produce("t", 1)
    with pytest.raises(InvalidInput):
        mq.sync.produce("t", object())
    testing.assert_produced(mq, "t", 1, headers={"by": "me"})
    assert len(testing.produced(mq)) == 1


# retries and delays


class Busy(Middleware):
    """Puts the first message off."""

    busy = True

    async def handle(self, delivery: Delivery, call_next: Handle) -> Any:
        if self.busy:
            self.busy = False
            raise Retry(delay=3600)
        return await call_next(delivery)


def flaky(mq: MessageQueue) -> list[int]:
    """Declare a handler that fails three times; return the list of its attempts."""
    attempts: list[int] = []

    @mq.handler("flaky", max_attempts=5, retry=[3600])
    async def handle(payload: int, delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        if len(attempts) == 1:
            raise Retry(delay=3600)
        if len(attempts) < 4:
            raise OSError

    return attempts


@pytest.mark.parametrize("own", [None, 3600, ByError({OSError: 3600, ValueError: None})])
@pytest.mark.parametrize("declared", ["before", "after"])
def test_retries_do_not_wait(mx_rmq_use: Use, own: Any, declared: str) -> None:
    mq = MessageQueue(NOWHERE, middleware=[Busy()])
    attempts = flaky(mq) if declared == "before" else []
    mx_rmq_use(mq)
    if declared == "after":
        attempts = flaky(mq)
    mq.sync.produce("flaky", 1, retry=own)
    began = time.monotonic()
    drained = testing.drain(mq)
    assert (drained.completed, drained.retried) == (1, 4)
    assert attempts == [2, 3, 4, 5]
    assert time.monotonic() - began < 30
    testing.assert_produced(mq, "flaky", 1, retry=own)


def test_what_is_not_retried_is_not_retried(mq: MessageQueue) -> None:
    @mq.handler("picky", retry=ByError({ValueError: None}, otherwise=3600), max_attempts=2)
    def handle(payload: str) -> None:
        raise {"value": ValueError(), "os": OSError()}.get(payload) or Reject("no")

    mq.sync.produce_many("picky", ["value", "os", "other"])
    drained = testing.drain(mq)
    assert (drained.completed, drained.retried, drained.dead) == (0, 1, 3)


def test_retries_wait_if_told_so(mx_rmq_use: Use) -> None:
    mq = mx_rmq_use(MessageQueue(NOWHERE), instant_retries=False)
    assert flaky(mq) == []
    mq.sync.produce("flaky", 1)
    assert testing.drain(mq).retried == 1
    assert mq.sync.call(lambda mq: mq.admin.stats("flaky")).delayed == 1


def test_delays_wait(mq: MessageQueue) -> None:
    mq.sync.produce("order.created", Order(1), delay=3600)
    assert testing.drain(mq).completed == 0


def test_delays_do_not_wait_if_told_so(shop: MessageQueue, mx_rmq_use: Use) -> None:
    mx_rmq_use(shop, instant_delays=True)
    shop.sync.produce("order.created", Order(1), delay=3600)
    shop.sync.produce("order.created", Order(2), at=4e9)
    assert testing.drain(shop).completed == 2
    testing.assert_produced(shop, "order.created", Order(1), delay=3600)
    testing.assert_produced(shop, "order.created", Order(2), at=4e9)


# flows, follow-ups, sleeps


@pytest.mark.parametrize("instant", [True, False])
def test_follow_ups_and_flows_are_recorded_and_do_not_wait_if_told_so(
    shop: MessageQueue, mx_rmq_use: Use, instant: bool
) -> None:
    @shop.handler("page")
    async def page(number: int, delivery: Delivery) -> None:
        delivery.produce("mail", {"page": number}, delay=3600)

    @shop.handler("book")
    async def book(title: dict[str, str]) -> None: ...

    @shop.handler("mail")
    async def mail(text: Any) -> None: ...

    mx_rmq_use(shop, instant_delays=instant)
    with shop.sync.flow() as flow:
        title = {"title": "The Whale"}
        pages = [flow.produce("page", number, priority="high") for number in (1, 2)]
        flow.produce("book", title, after=pages, delay=3600)
        title["title"] = "changed later"
    assert testing.drain(shop).completed == (5 if instant else 2)
    testing.assert_produced(shop, "page", times=2, priority="high")
    testing.assert_produced(shop, "book", {"title": "The Whale"}, delay=3600)
    testing.assert_produced(shop, "mail", {"page": 2}, times=1, delay=3600)


def test_sleeps_do_not_wait_if_told_so(shop: MessageQueue, mx_rmq_use: Use) -> None:
    runs = []

    @shop.handler("job", result_ttl=60)
    async def job(_: Any, delivery: Delivery) -> str:
        runs.append(delivery.attempt)
        await delivery.sleep("a week", 7 * 86_400)
        answer: str = await delivery.wait("answer", timeout=7 * 86_400)
        return answer

    mx_rmq_use(shop, instant_delays=True)
    id = shop.sync.produce("job", None)
    assert testing.drain(shop).snoozed == 1
    status = shop.sync.status("job", id)
    assert status is not None
    assert status.state == "waiting"
    assert shop.sync.signal("job", id, "answer", "yes")
    assert testing.drain(shop).completed == 1
    assert shop.sync.result("job", id, timeout=5) == "yes"
    assert runs == [1, 1, 1]


# afterwards


def test_the_queue_is_what_it_was_and_nothing_is_left(mx_rmq_server: str) -> None:
    stamp = Stamp()
    mq = MessageQueue(NOWHERE, middleware=[stamp])
    flaky(mq)
    before = mq.settings, mq.middleware, mq.handlers, mq.crons
    for _ in range(2):
        with testing.use(mq, mx_rmq_server):
            assert mq.sync.call(lambda mq: mq.admin.topics()) == []
            assert testing.produced(mq) == []
            mq.sync.produce("flaky", 1)
            mq.handler("own")(lambda payload: None)
            assert list(mq.handlers) == ["flaky", "own"]
        assert (mq.settings, mq.middleware, mq.handlers, mq.crons) == before
        assert list(mq.handlers) == ["flaky"]
        with Redis.from_url(mx_rmq_server) as raw:
            assert raw.keys() == []
    with pytest.raises(InvalidInput, match="not in test mode"):
        testing.produced(mq)


async def test_a_queue_that_is_open_is_refused(mq: MessageQueue) -> None:
    async with mq:
        with pytest.raises(InvalidInput, match="already open"), testing.use(mq):
            pass


WRONG = "audit: mail: m-1: a state without a record: pending"


async def broken(mq: MessageQueue, url: str, *, then: Exception | None = None) -> None:
    """Lose a record while the queue is in test mode."""
    async with testing.use(mq, url):
        await mq.produce("mail", 1, id="m-1")
        with Redis.from_url(url) as raw:
            raw.delete(f"{mq.settings.prefix}:{{mail}}:payload")
        if then is not None:
            raise then


async def test_a_broken_topic_is_reported(shop: MessageQueue, mx_rmq_server: str) -> None:
    with pytest.raises(AssertionError, match=f"^{WRONG}$"):
        await broken(shop, mx_rmq_server)


async def test_a_test_that_fails_keeps_its_error_and_hears_of_a_broken_topic(
    shop: MessageQueue, mx_rmq_server: str
) -> None:
    with pytest.raises(KeyError) as failure:
        await broken(shop, mx_rmq_server, then=KeyError())
    assert failure.value.__notes__ == [WRONG]


def test_a_queue_that_is_left_open_is_reported_and_can_be_opened_again(
    shop: MessageQueue, mx_rmq_server: str
) -> None:
    async def forgetful() -> None:
        await shop.open()
        await shop.store.close()  # or its socket would be a warning

    left = "^the test left the queue open: put `async with mq:` around "
    with pytest.raises(AssertionError, match=left), testing.use(shop, mx_rmq_server):
        asyncio.run(forgetful())
    with testing.use(shop, mx_rmq_server):
        asyncio.run(Worker(shop).drain())


async def test_wipe_removes_what_is_under_the_prefix_and_nothing_else(mx_rmq_server: str) -> None:
    with Redis.from_url(mx_rmq_server) as raw:
        raw.mset({"test:1:{a}:meta": 1, "test:1:topics": 1, "test:11:topics": 1, "test:1": 1})
        await wipe(mx_rmq_server, "test:1")
        assert sorted(raw.keys()) == [b"test:1", b"test:11:topics"]
        raw.flushall()
        with pytest.raises(InvalidInput):
            await wipe(mx_rmq_server, "test:*")


@pytest.mark.parametrize("setting", ["", "mx_rmq", "mx_rmq:Worker"])
def test_a_setting_that_names_no_queue_is_told(setting: str) -> None:
    told = f"^mx_rmq_queue = '{setting}' is not the name of a MessageQueue: set "
    with pytest.raises(pytest.fail.Exception, match=told):
        named(setting)


# in a project of a user's own, run by a pytest of its own

INI = """
    [pytest]
    addopts = -pno:valkey -pno:cacheprovider
    filterwarnings = error
    pythonpath = .
    asyncio_default_fixture_loop_scope = function
    mx_rmq_queue = shop:mq
"""

SHOP = """
    from dataclasses import dataclass
    from mx_rmq import MessageQueue

    mq = MessageQueue("redis://nowhere.invalid:6379/0")

    @dataclass
    class Order:
        id: int
        customer: str = "ann"

    @mq.handler("order.created")
    async def confirm(order: Order) -> None:
        await mq.produce("mail", {"to": order.customer, "order": order.id}, priority="high")
"""

CONFTEST = """
    import pytest
    from redis import Redis
    from mx_rmq import testing  # before pytest imports it
    import shop

    pytest_plugins = ["mx_rmq.testing"]

    @pytest.fixture(scope="session")
    def leaves_nothing(mx_rmq_server):
        yield
        with Redis.from_url(mx_rmq_server) as raw:
            assert raw.keys() == []
"""

HEAD = "import pytest\nfrom mx_rmq import Worker, testing\nfrom shop import *\n"


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the tests of a user with a shop, in a process of their own."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    for name in [name for name in os.environ if name.startswith(("MX_RMQ_", "PYTEST_XDIST"))]:
        if name != "MX_RMQ_SERVER_BINARY":
            monkeypatch.delenv(name)
    pytester.makeini(dedent(INI))
    pytester.makepyfile(shop=dedent(SHOP), conftest=dedent(CONFTEST))

    def run(*options: str, **files: str) -> pytest.RunResult:
        pytester.makepyfile(**{name: HEAD + dedent(text) for name, text in files.items()})
        return pytester.runpytest_subprocess(*options, timeout=100)

    return run


ASYNC = """
    async def test_an_order_is_confirmed(mx_rmq_queue, leaves_nothing):
        assert mx_rmq_queue is mq
        async with mq:
            await mq.produce("order.created", Order(1))
            assert (await Worker(mq).drain()).completed == 1
        testing.assert_produced(mq, "mail", {"to": "ann", "order": 1}, priority="high")
        testing.assert_produced(mq, "order.created", Order(1), times=1)
        testing.assert_not_produced(mq, "mail", testing.Containing({"to": "bob"}))
"""


def test_any_way_to_run_async_tests_will_do(run: Run) -> None:
    """Strict mode and anyio; the page's examples, below, are in auto mode."""
    strict = "    pytestmark = pytest.mark.asyncio\n"
    anyio = """
    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def anyio_backend():
        return "asyncio"
    """
    run(
        "--asyncio-mode=strict", test_strict=strict + ASYNC, test_anyio=anyio + ASYNC
    ).assert_outcomes(passed=2)


def test_every_process_of_xdist_has_a_server_of_its_own_and_leaves_nothing(run: Run) -> None:
    result = run(
        "-n2",
        "--dist=each",
        test_it="""
            @pytest.mark.parametrize("number", range(3))
            def test_alone(mx_rmq_queue, mx_rmq_server, leaves_nothing, worker_id, number):
                assert mq.sync.call(lambda mq: mq.admin.topics()) == []
                mq.sync.produce("order.created", Order(number))
                with open(worker_id, "w") as file:
                    file.write(mx_rmq_server)

            def test_a_queue_that_makes_itself(mx_rmq_url, leaves_nothing):
                mine = type(mq)(mx_rmq_url)
                mine.sync.produce("order.created", 1)
                mine.sync.close()
        """,
    )
    result.assert_outcomes(passed=8)
    servers = {Path(name).read_text() for name in ("gw0", "gw1")}
    assert len(servers) == 2
    assert not any(Path(url.removeprefix("unix://")).parent.exists() for url in servers)


def test_a_failure_is_the_tests_own_and_shows_its_line(run: Run) -> None:
    result = run(
        test_it="""
            from redis import Redis

            def break_it(mq):
                with Redis.from_url(mq.settings.url) as raw:
                    raw.delete(mq.settings.prefix + ":{mail}:payload")

            def test_missing(mx_rmq_queue):
                testing.assert_produced(mq, "mail", 1)

            def test_a_slip(mx_rmq_queue):
                testing.assert_produced(mq, "mail", prio="high")

            def test_broken(mx_rmq_queue):
                mq.sync.produce("mail", 1, id="m-1")
                break_it(mq)

            def test_broken_at_a_url(mx_rmq_url):
                mine = type(mq)(mx_rmq_url)
                mine.sync.produce("mail", 1, id="m-2")
                break_it(mine)
                mine.sync.close()

            def test_whole(mx_rmq_queue, leaves_nothing):
                mq.sync.produce("mail", 1)
        """,
    )
    result.assert_outcomes(passed=3, failed=2, errors=2)
    result.stdout.fnmatch_lines_random(
        [
            "E*AssertionError: audit: mail: m-1: a state without a record: pending",
            "E*AssertionError: audit: mail: m-2: a state without a record: pending",
            '>*testing.assert_produced(mq, "mail", 1)',
            "E*AssertionError: 'mail' with payload 1 was never produced",
            "E*Produced to 'mail': nothing",
            '>*testing.assert_produced(mq, "mail", prio="high")',
            "E*TypeError: 'prio' is not an option of produce: *",
        ]
    )
    result.stdout.no_fnmatch_line("*record.py:*")


def test_without_pytest_everything_but_the_fixtures_works() -> None:
    script = """
        import sys

        sys.modules["pytest"] = None  # as if it were not installed
        from mx_rmq import MessageQueue
        from mx_rmq.testing import *

        mq = MessageQueue("redis://nowhere.invalid:6379/0")
        with use(mq):
            mq.sync.produce("mail", 1)
            assert_produced(mq, "mail", 1)
        print([name for name in dir() if "mx_rmq_" in name])
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(script)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("[]\n", "", 0)
    assert {"mx_rmq_queue", "mx_rmq_url"} <= {*testing.__all__}


def test_nothing_is_started_where_no_fixture_is_used(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MX_RMQ_SERVER_BINARY", "/nonexistent")
    ini = Path("tox.ini")
    ini.write_text(ini.read_text().replace("asyncio_default_fixture_loop_scope = function\n", ""))
    run("--strict-config", "-pno:asyncio", test_it="def test_it(): ...").assert_outcomes(passed=1)


PAGE = Path(__file__).parents[1] / "docs" / "testing.md"
NAMED = re.compile(r"^```(?:py|toml)\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.usefixtures("run")
def test_the_examples_of_the_page_run_as_printed(pytester: pytest.Pytester) -> None:
    page = PAGE.read_text()
    files = dict(NAMED.findall(page))
    assert len(files) == page.count("```py\n") + page.count("```toml\n")
    Path("tox.ini").unlink()
    for name, text in files.items():
        Path(name).write_text(text)
    result = pytester.runpytest_subprocess("-W", "error", timeout=100)
    result.assert_outcomes(passed=5)
