"""mq.sync: the queue for code without an event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis

from mx_rmq import InvalidInput, MessageQueue, NotOpen, ServerUnavailable
from mx_rmq.sync import _Opened
from tests.runtime.stage import on_a_server, until_so

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.lab.servers import Kind, Server

pytestmark = on_a_server


@pytest.fixture
def mq(server: Server) -> Iterator[MessageQueue]:
    client = Redis.from_url(server.url)
    client.flushall()
    client.close()
    mq = MessageQueue(server.url)
    yield mq
    try:
        for topic in mq.sync.call(lambda mq: mq.admin.topics()):
            assert mq.sync.call(lambda mq, topic=topic: mq.admin.audit(topic)) == []  # type: ignore[misc]
    finally:
        mq.sync.close()


def pending(mq: MessageQueue, topic: str = "t") -> int:
    return mq.sync.call(lambda mq: mq.admin.stats(topic)).pending


_before: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def _threads_of_this_test() -> None:
    _before.clear()
    _before.update(threading.enumerate())


def threads() -> list[str]:
    """Return the names of our threads that this test has started."""
    started = set(threading.enumerate()) - _before
    return [one.name for one in started if one.name.startswith("mx-rmq")]


def test_a_plain_script_produces_without_opening_anything(mq: MessageQueue) -> None:
    id = mq.sync.produce("t", {"a": 1}, priority="high", headers={"h": "x"})
    ids = mq.sync.produce_many("t", range(10))
    view = mq.sync.call(lambda mq: mq.admin.get("t", id))
    assert view is not None
    assert (view.payload, view.headers) == ({"a": 1}, {"h": "x"})
    assert len(set(ids)) == 10
    assert pending(mq) == 11
    assert not mq.is_open  # the original stays as it was


def test_a_flow_is_sent_as_a_whole_or_not_at_all(mq: MessageQueue) -> None:
    with mq.sync.flow() as flow:
        first = flow.produce("t", 1)
        flow.produce("t", 2, after=[first])
    assert pending(mq) == 2
    with suppress(ZeroDivisionError), mq.sync.flow() as flow:
        flow.produce("t", 3)
        raise ZeroDivisionError
    with pytest.raises(InvalidInput, match="the flow has ended"):
        flow.produce("t", 4)
    assert pending(mq) == 2


def test_event_loops_that_come_and_go_await_it(mq: MessageQueue) -> None:
    async def produce() -> str:
        return await mq.sync.acall(lambda mq: mq.produce("t", 1))

    assert len({asyncio.run(produce()) for _ in range(2)}) == 2
    assert pending(mq) == 2

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await mq.sync.acall(lambda mq: mq.result("t", "unknown-1", timeout=60))

    mq.sync.produce("t", 1, id="unknown-1")
    asyncio.run(give_up())
    assert pending(mq) == 3


def test_a_message_is_aborted_without_an_event_loop(mq: MessageQueue) -> None:
    id = mq.sync.produce("t", 1)
    assert mq.sync.abort("t", id, "not needed") is True
    assert mq.sync.abort("t", id) is False
    view = mq.sync.call(lambda mq: mq.admin.get("t", id))
    assert view is not None
    assert (view.state, view.reason) == ("dead", "aborted: not needed")


def test_calls_from_many_threads_share_one_connection_thread(mq: MessageQueue) -> None:
    with ThreadPoolExecutor(16) as pool:
        ids = list(pool.map(lambda number: mq.sync.produce("t", number), range(200)))
    assert len(set(ids)) == 200
    assert pending(mq) == 200
    assert threads() == ["mx-rmq-sync"]


def test_the_first_calls_from_many_threads_at_once_open_it_once(mq: MessageQueue) -> None:
    meeting = threading.Barrier(16)

    def produce(number: int) -> str:
        meeting.wait()
        return mq.sync.produce("t", number)

    with ThreadPoolExecutor(16) as pool:
        assert len(set(pool.map(produce, range(16)))) == 16
    assert threads() == ["mx-rmq-sync"]


def test_two_first_calls_open_it_once_whenever_they_look_at_the_process(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    getpid, met = os.getpid, threading.Barrier(2, timeout=0.5)

    def slow() -> int:
        """A switch of threads may come here as well as anywhere."""
        with suppress(threading.BrokenBarrierError):
            met.wait()
        return getpid()

    sync = mq.sync
    monkeypatch.setattr("mx_rmq.sync.os.getpid", slow)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda number: sync.produce("t", number), range(2)))
    monkeypatch.undo()
    assert threads() == ["mx-rmq-sync"]


def test_a_thread_that_is_none_is_refused(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(threading, "get_native_id", lambda: 1)  # as in gevent: all are one thread
        with pytest.raises(NotOpen, match="gevent or eventlet has replaced threads"):
            mq.sync.produce("t", 1)
    assert threads() == []
    mq.sync.produce("t", 1)


def test_a_queue_that_is_used_is_not_moved(mq: MessageQueue) -> None:
    mq.sync.produce("t", 1)
    mq.move(url=mq.settings.url)  # that changes nothing
    with pytest.raises(InvalidInput, match=r"call mq\.sync\.close"):
        mq.move(url="redis://elsewhere")
    mq.sync.close()
    mq.move(prefix="elsewhere")
    mq.sync.produce("t", 2)
    assert pending(mq) == 1


def test_an_error_comes_to_the_caller(mq: MessageQueue) -> None:
    with pytest.raises(InvalidInput):
        mq.sync.produce("t", object())
    with pytest.raises(ZeroDivisionError):
        mq.sync.call(_fail)
    assert mq.sync.produce("t", 1)


async def _fail(mq: MessageQueue) -> None:
    raise ZeroDivisionError


def test_inside_a_running_loop_it_is_refused_with_the_way_out(mq: MessageQueue) -> None:
    async def inside() -> None:
        mq.sync.produce("t", 1)

    with pytest.raises(NotOpen, match="await the same method"):
        asyncio.run(inside())


def test_from_a_thread_beside_a_running_loop_it_works(mq: MessageQueue) -> None:
    async def inside() -> str:
        return await asyncio.to_thread(mq.sync.produce, "t", 1)

    assert asyncio.run(inside())


def test_closed_it_opens_again_by_itself(mq: MessageQueue) -> None:
    mq.sync.produce("t", 1)
    mq.sync.close()
    assert threads() == []
    mq.sync.close()
    mq.sync.produce("t", 2)
    assert pending(mq) == 2


def test_closing_finishes_what_is_being_produced(mq: MessageQueue) -> None:
    begun = threading.Event()

    async def hundred(mq: MessageQueue) -> list[str]:
        calls = [asyncio.create_task(mq.produce("t", number)) for number in range(100)]
        await asyncio.sleep(0)
        begun.set()
        return await asyncio.gather(*calls)

    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(mq.sync.call, hundred)
        assert begun.wait(5)
        mq.sync.close()
        assert len(set(call.result(10))) == 100
    assert pending(mq) == 100


def test_a_call_that_is_under_way_when_it_is_closed_ends(mq: MessageQueue, server: Server) -> None:
    script = f"""
        import asyncio, os, threading
        from mx_rmq import MessageQueue
        mq, begun, ended = MessageQueue({server.url!r}), threading.Event(), threading.Event()

        async def long(mq):
            begun.set()
            await asyncio.sleep(60)

        def call():
            try:
                mq.sync.call(long)
            finally:  # whatever it raises, it must end
                ended.set()

        threading.Thread(target=call, daemon=True).start()
        begun.wait()
        mq.sync.close()
        os._exit(0 if ended.wait(30) else 1)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        timeout=60,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0


def test_a_call_that_comes_between_closing_and_the_end_of_the_loop_ends(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[Future[None]] = []
    stop = _Opened._stop

    def start_and_stop(opened: _Opened) -> None:
        late.append(opened.start(lambda _: asyncio.sleep(60)))
        stop(opened)

    monkeypatch.setattr(_Opened, "_stop", start_and_stop)
    opened = mq.sync._opened()
    mq.sync.close()
    assert late[0].cancelled()
    with pytest.raises(NotOpen, match="was closed during this call"):
        opened.start(lambda mq: mq.status("t", "1"))


async def test_a_watch_that_an_event_loop_collects_ends_without_blocking_it(
    mq: MessageQueue,
) -> None:
    id = await mq.sync.acall(lambda mq: mq.produce("t", 1))
    watching = mq.sync.watch("t", id)
    assert (await asyncio.to_thread(next, watching)).state == "pending"
    del watching  # an error in it would be a warning, and warnings fail

    async def none_left(_: MessageQueue) -> bool:
        return not asyncio.get_running_loop()._asyncgens  # type: ignore[attr-defined]

    await until_so(lambda: mq.sync.acall(none_left))


async def test_who_awaits_a_call_while_it_is_closed_is_told_and_not_cancelled(
    mq: MessageQueue,
) -> None:
    has_begun = threading.Event()

    async def wait_long(_: MessageQueue) -> None:
        has_begun.set()
        await asyncio.sleep(60)

    waiting = asyncio.create_task(mq.sync.acall(wait_long))
    assert await asyncio.to_thread(has_begun.wait, 30)
    await asyncio.to_thread(mq.sync.close)
    with pytest.raises(NotOpen, match="was closed during this call"):
        await waiting


def test_a_server_that_is_not_there_is_told_within_patience(
    mq: MessageQueue, tmp_path: Path
) -> None:
    away = MessageQueue(f"unix://{tmp_path}/none.sock", patience=0.3)
    for _ in range(2):
        begun = time.monotonic()
        with pytest.raises(ServerUnavailable):
            away.sync.produce("t", 1)
        assert time.monotonic() - begun < 8  # the usual patience is 10
    assert threads() == []
    away.sync.close()


def in_child(work: Callable[[], Any], seconds: int = 15) -> int:
    """Run something in a forked process; return its exit status, -14 if it hangs."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(seconds)
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_after_a_fork_the_child_begins_anew_and_the_parent_goes_on(mq: MessageQueue) -> None:
    mq.sync.produce("t", 0)

    def work() -> None:
        mq.sync.produce("t", 1)
        mq.sync.produce_many("t", [2, 3])
        mq.sync.close()

    assert [in_child(work) for _ in range(3)] == [0, 0, 0]
    mq.sync.produce("t", 4)
    assert pending(mq) == 11


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_the_first_threads_of_a_child_open_it_once(
    mq: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    getpid = os.getpid
    mq.sync.produce("t", 0)

    def work() -> None:
        meeting = threading.Barrier(8, timeout=0.5)

        def slow() -> int:
            """A switch of threads may come here as well as anywhere."""
            found = getpid()
            with suppress(threading.BrokenBarrierError):
                meeting.wait()
            return found

        monkeypatch.setattr("mx_rmq.sync.os.getpid", slow)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: mq.sync.produce("t", number), range(8)))
        assert threads() == ["mx-rmq-sync"]
        mq.sync.close()

    assert in_child(work) == 0
    assert pending(mq) == 9


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_watch_that_was_begun_before_a_fork_ends_in_the_parent_alone(mq: MessageQueue) -> None:
    id = mq.sync.produce("t", 0)
    watching = mq.sync.watch("t", id)
    assert next(watching).state == "pending"

    def work() -> None:
        mq.sync.produce("t", 1)
        watching.close()  # type: ignore[attr-defined]  # a generator, as WSGI servers close it
        mq.sync.close()

    assert in_child(work) == 0
    mq.sync.abort("t", id)
    assert [status.state for status in watching] == ["dead"]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_child_that_only_closes_leaves_the_parents_connection_alone(mq: MessageQueue) -> None:
    mq.sync.produce("t", 0)
    assert in_child(mq.sync.close) == 0
    mq.sync.produce("t", 1)
    assert pending(mq) == 2


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_child_that_was_forked_while_it_was_being_opened_can_close_and_exit(
    mq: MessageQueue, tmp_path: Path
) -> None:
    path = tmp_path / "mute.sock"
    with socket.socket(socket.AF_UNIX) as mute:  # it takes connections and says nothing
        mute.bind(str(path))
        mute.listen()
        opening = MessageQueue(f"unix://{path}", patience=1)
        sync = opening.sync

        def open_it() -> None:
            with pytest.raises(ServerUnavailable):
                sync.produce("t", 1)

        thread = threading.Thread(target=open_it)
        thread.start()
        while "mx-rmq-sync" not in threads():
            time.sleep(0.001)
        time.sleep(0.1)
        status = in_child(sync.close)
        thread.join()
    assert status == 0


def test_a_script_that_never_closes_ends_by_itself(mq: MessageQueue, server: Server) -> None:
    script = f"""
        from mx_rmq import MessageQueue
        mq = MessageQueue({server.url!r})
        mq.sync.produce("t", 1)
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)],
        timeout=60,
        capture_output=True,
        check=True,
    )
    assert b"Traceback" not in done.stderr
    assert pending(mq) == 1


def test_a_process_that_ends_without_closing_it_says_nothing(kind: Kind, short_path: Path) -> None:
    program = (
        "from mx_rmq import MessageQueue\nMessageQueue('embedded://./d').sync.produce('t', 1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=short_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("kind_of_end", [SystemExit, KeyboardInterrupt])
def test_a_call_that_wants_to_end_the_process_ends_only_itself(
    mq: MessageQueue, kind_of_end: type[BaseException]
) -> None:
    async def ends(_: MessageQueue) -> None:
        raise kind_of_end

    async def task_ends(_: MessageQueue) -> str:
        task = asyncio.create_task(ends(mq))
        await asyncio.wait([task])
        return type(task.exception()).__name__

    first = mq.sync.produce("t", 1)
    with pytest.raises(kind_of_end):
        mq.sync.call(ends)
    assert mq.sync.call(task_ends) == kind_of_end.__name__
    assert mq.sync.produce("t", 2) != first
