"""Plain functions in threads, and how they are interrupted."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.runtime.threads import Call, Interrupted, Threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VARIABLE: ContextVar[str] = ContextVar("variable", default="unset")


@pytest.fixture
def threads() -> Iterator[Threads]:
    threads = Threads(1)
    yield threads
    threads.close()


class Started:
    """Keeps the interrupt of a call."""

    interrupt: Callable[[], None]


async def run(
    threads: Threads, function: Callable[..., Any], arguments: tuple[Any, ...], started: Started
) -> Any:
    """Run a function in a thread."""
    call = Call(function, arguments)
    started.interrupt = call.interrupt
    return await threads.run(call)


def forever(begun: threading.Event | None = None) -> None:
    if begun is not None:
        begun.set()
    while True:
        time.sleep(0.001)


async def test_a_result_comes_back(threads: Threads) -> None:
    assert await run(threads, lambda a, b: a + b, (1, 2), Started()) == 3


async def test_the_function_runs_in_another_thread(threads: Threads) -> None:
    name = await run(threads, lambda: threading.current_thread().name, (), Started())
    assert name.startswith("mx-rmq-handler")


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), asyncio.CancelledError()])
async def test_an_exception_comes_back(threads: Threads, error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        await run(threads, fail, (), Started())
    assert caught.value is error or isinstance(error, asyncio.CancelledError)


async def test_a_stop_iteration_comes_back_as_an_error(threads: Threads) -> None:
    with pytest.raises((StopIteration, RuntimeError)):
        await asyncio.wait_for(run(threads, lambda: next(iter([])), (), Started()), 2)


async def test_context_variables_go_with_the_call_and_what_it_sets_stays_there(
    threads: Threads,
) -> None:
    VARIABLE.set("outside")

    def look() -> str:
        before = VARIABLE.get()
        VARIABLE.set("inside")
        return before

    assert await run(threads, look, (), Started()) == "outside"
    assert VARIABLE.get() == "outside"
    assert await run(threads, look, (), Started()) == "outside"


async def test_an_interrupt_is_raised_in_a_loop_of_python(threads: Threads) -> None:
    begun, started = threading.Event(), Started()
    task = asyncio.create_task(run(threads, forever, (begun,), started))
    await asyncio.to_thread(begun.wait, 5)
    started.interrupt()
    with pytest.raises(Interrupted):
        await asyncio.wait_for(task, 5)


async def test_a_handler_that_catches_every_exception_is_interrupted_all_the_same(
    threads: Threads,
) -> None:
    begun, started = threading.Event(), Started()

    def stubborn() -> None:
        while True:
            with suppress(Exception):
                forever(begun)

    task = asyncio.create_task(run(threads, stubborn, (), started))
    await asyncio.to_thread(begun.wait, 5)
    started.interrupt()
    with pytest.raises(Interrupted):
        await asyncio.wait_for(task, 5)


async def test_an_interrupt_before_the_thread_began_keeps_the_function_from_running(
    threads: Threads,
) -> None:
    ran: list[int] = []
    release, started = threading.Event(), Started()
    first = asyncio.create_task(run(threads, release.wait, (5,), Started()))
    second = asyncio.create_task(run(threads, ran.append, (1,), started))
    await asyncio.sleep(0)
    started.interrupt()
    release.set()
    await first
    with pytest.raises(Interrupted):
        await asyncio.wait_for(second, 5)
    assert ran == []


async def test_an_interrupt_after_the_function_left_does_not_hit_the_next_call(
    threads: Threads,
) -> None:
    def count() -> int:
        return sum(1 for _ in range(20_000))

    for _ in range(50):
        started = Started()
        await run(threads, count, (), started)
        started.interrupt()
        assert await run(threads, count, (), Started()) == 20_000


async def test_an_interrupt_at_any_moment_hits_its_own_call_or_nothing(threads: Threads) -> None:
    def count(to: int) -> int:
        return sum(1 for _ in range(to))

    for round in range(150):
        started = Started()
        task = asyncio.create_task(run(threads, count, (3000,), started))
        await asyncio.sleep(round * 0.00001)
        started.interrupt()
        with suppress(Interrupted):
            assert await task == 3000
        assert await run(threads, count, (1000,), Started()) == 1000


async def test_a_call_that_slept_in_c_is_interrupted_when_it_wakes(threads: Threads) -> None:
    begun, started = threading.Event(), Started()

    def sleepy() -> None:
        begun.set()
        time.sleep(0.2)
        forever()

    task = asyncio.create_task(run(threads, sleepy, (), started))
    await asyncio.to_thread(begun.wait, 5)
    started.interrupt()
    assert not task.done()
    with pytest.raises(Interrupted):
        await asyncio.wait_for(task, 5)


async def test_a_call_that_has_left_its_thread_interrupts_nobody() -> None:
    call = Call(lambda: 5, ())
    call.run()
    assert await call.finish() == 5
    call.interrupt()
    assert sum(1 for _ in range(100_000)) == 100_000


async def test_a_scope_learns_that_its_function_was_interrupted_even_if_it_returned() -> None:
    begun, left = threading.Event(), list[type[BaseException]]()

    @contextmanager
    def scope() -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            left.append(type(error))
            raise

    def stubborn() -> str:
        with suppress(Interrupted):
            forever(begun)
        return "returned"

    threads, started = Threads(1, scope=scope), Started()
    task = asyncio.create_task(run(threads, stubborn, (), started))
    await asyncio.to_thread(begun.wait, 5)
    started.interrupt()
    assert await asyncio.wait_for(task, 5) == "returned"
    assert left == [Interrupted]
    threads.close()


PROFILED = """
import asyncio, cProfile, threading, time
from mx_rmq.runtime.threads import Call, Interrupted, Threads

begun = threading.Event()

def sleeps_on():
    try:
        begun.set()
        time.sleep(0.2)
        for _ in range(1000):
            time.sleep(0.01)
    except Interrupted:
        return "struck"

async def main():
    call = Call(sleeps_on, ())
    running = asyncio.create_task(Threads(1).run(call))
    while not begun.is_set():  # an earlier interrupt would withdraw the call
        await asyncio.sleep(0.001)
    call.interrupt()
    print(await running)

asyncio.run(main())
cProfile.run("asyncio.run(asyncio.sleep(0))")
"""


def test_a_process_in_which_a_thread_was_interrupted_can_be_profiled() -> None:
    program = [sys.executable, "-c", PROFILED]  # it would hang, deaf to signals
    done = subprocess.run(program, timeout=60, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("struck")
