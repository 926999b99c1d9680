"""Run one worker in this process, for `mx-rmq worker`: signals, signs of life, exit codes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from contextlib import nullcontext
from math import ceil, inf
from typing import TYPE_CHECKING, Final

from mx_rmq.cli.handled_log import HandledLog
from mx_rmq.cli.load_queue import load
from mx_rmq.cli.logs import configure_logging, print_error
from mx_rmq.cli.output import say
from mx_rmq.cli.supervisor import BROKEN, LEFT, Lifeline
from mx_rmq.core.errors import InvalidInput, MxRmqError, WorkerBroken
from mx_rmq.core.events import WorkerFailed, WorkerStarted, WorkerStopped, WorkerStopping
from mx_rmq.logs import FailedPayloads
from mx_rmq.runtime.loop import loop_factory
from mx_rmq.runtime.signals import STOP_SIGNALS, on_stop_signals
from mx_rmq.worker import Worker

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from mx_rmq.cli.systemd import Systemd
    from mx_rmq.cli.worker import Options

# Seconds
SIGN_OF_LIFE: Final = 1.0  # between two signs of life to the supervisor and systemd
LAST_RESORT: Final = 60  # beyond the grace, after which SIGALRM ends a worker that failed and hangs
LEAVE_WITHIN: Final = 5.0  # for other threads to end after the worker has stopped


def run_worker(options: Options, grace: float, systemd: Systemd) -> int:
    """Run until stopped; return the exit code."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.default_int_handler)  # both raise KeyboardInterrupt
    lifeline = None if options.lifeline is None else Lifeline(options.lifeline)
    if lifeline is not None:
        lifeline.watch(grace)
    mq = load(options.target, options.imports)
    mq.move(url=options.url, prefix=options.prefix)
    configure_logging(options.log_level, options.log_format, options.mask)
    if options.log_payloads:
        mq.middleware = (*mq.middleware, FailedPayloads(options.mask))
    if not options.quiet:
        HandledLog(mq.events).listen()
    worker = Worker(mq, **options.settings())
    started = unclean = False

    def on_started(_: WorkerStarted) -> None:
        nonlocal started
        started = True
        systemd.ready()
        give_sign_of_life()

    def give_sign_of_life() -> None:
        """Tell the supervisor and systemd that the event loop runs and no part is down."""
        if not worker.down:
            systemd.alive()
            if lifeline is not None:
                lifeline.works()
        every = min(SIGN_OF_LIFE, (systemd.watchdog or inf) / 3)
        asyncio.get_running_loop().call_later(every, give_sign_of_life)

    def on_failed(_: WorkerFailed) -> None:
        """The worker stops now. If it hangs while stopping, SIGALRM ends the process."""
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(ceil(min(grace, 1e6)) + LAST_RESORT)

    def on_stopped(event: WorkerStopped) -> None:
        nonlocal unclean
        unclean |= not event.clean

    mq.events.subscribe(on_started, WorkerStarted)
    mq.events.subscribe(lambda _: systemd.stopping(), WorkerStopping)
    mq.events.subscribe(on_stopped, WorkerStopped)
    mq.events.subscribe(on_failed, WorkerFailed)

    async def until_stopped() -> int:
        nonlocal unclean
        broken = False
        try:
            async with _endpoint(worker):
                await (_drain(worker) if options.drain else worker.run())
        except MxRmqError as error:
            if not started:
                raise
            print_error(error, options.log_format)
            unclean = True
            broken = isinstance(error, WorkerBroken)
        code = BROKEN if broken else LEFT if unclean else 0
        _leave_soon(code)
        return code

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(until_stopped())


def _endpoint(worker: Worker) -> AbstractAsyncContextManager[object]:
    """Return the endpoint for metrics and health, if a port is set."""
    if not worker.settings.metrics_port:
        return nullcontext()
    try:
        from mx_rmq.metrics import Endpoint
    except ImportError as error:
        raise InvalidInput(str(error)) from error
    return Endpoint(worker)


async def _drain(worker: Worker) -> None:
    """Drain the queue. The first signal shuts down cleanly, the second cancels handlers."""
    draining = asyncio.create_task(worker.drain(), name="mx-rmq drain")

    def on_signal() -> None:
        if draining.cancelling():
            worker.cancel()
        else:
            draining.cancel()

    with on_stop_signals(on_signal):
        await asyncio.wait([draining])
    if not draining.cancelled():
        done = draining.result()
        snoozed = f", {done.snoozed:,} snoozed" if done.snoozed else ""
        say(
            f"{done.completed:,} completed, {done.retried:,} retried, {done.dead:,} dead, "
            f"{done.quarantined:,} quarantined{snoozed}"
        )


def _leave_soon(code: int) -> None:
    """End the process soon, whatever threads are still running.

    A thread that runs a handler cannot be stopped in any other way. Its message is handed back.
    """

    def leave(*_: object) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    for number in STOP_SIGNALS:
        signal.signal(number, leave)
    timer = threading.Timer(LEAVE_WITHIN, leave)
    timer.daemon = True
    try:
        timer.start()
    except RuntimeError:  # cannot start a thread
        signal.signal(signal.SIGALRM, leave)
        signal.alarm(ceil(LEAVE_WITHIN))
