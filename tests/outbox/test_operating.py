"""Operators see what waits and what is parked: command line, doctor, metrics."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import text

from mx_rmq import outbox
from mx_rmq.cli import main
from mx_rmq.core.events import OutboxMeasured
from mx_rmq.doctor.outbox import LATE, check_outbox
from mx_rmq.metrics.exposition import render
from mx_rmq.metrics.recorder import Recorder
from tests.cli.calls import run
from tests.outbox.databases import rows

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from mx_rmq import MessageQueue
    from tests.lab.servers import Server


def write(engine: Engine, *errors: str | None) -> list[str]:
    """Write a row for each of these errors; None: it only waits."""
    ids = []
    with engine.begin() as connection:
        for error in errors:
            ids.append(outbox.produce(connection, "order", 1))
            connection.execute(
                text("UPDATE mx_rmq_outbox SET error = :error WHERE id = :id"),
                {"error": error, "id": ids[-1]},
            )
    return ids


def call(engine: Engine, *words: str) -> Result:
    url = engine.url.render_as_string(hide_password=False)
    if url.startswith("postgresql"):
        url = url.replace("+psycopg", "")  # as libpq takes it
    return CliRunner().invoke(main, ["outbox", url, *words])


def test_the_command_shows_retries_and_discards_parked_rows(engine: Engine) -> None:
    first, second, third, _ = write(engine, "too large", "too late", "too odd", None)
    told = call(engine)
    assert told.exit_code == 1
    assert told.stdout.startswith("1 row to send, the first for 0")
    assert "3 parked" in told.stdout
    assert "too odd" in told.stdout
    shown = json.loads(call(engine, "--json", "--id", first).stdout)
    assert (shown["waiting"], shown["parked"]) == (1, 3)
    assert [(one["id"], one["error"]) for one in shown["rows"]] == [(first, "too large")]

    assert call(engine, "--retry", "--id", second).stdout == "1 row will be tried again\n"
    assert call(engine, "--retry", "--id", second).exit_code == 1
    refused = call(engine, "--discard")
    assert refused.exit_code == 2
    assert "pass --yes" in refused.stderr
    assert call(engine, "--discard", "--yes", "--id", third).stdout == "1 row deleted\n"
    assert call(engine, "--retry").stdout == "1 row will be tried again\n"
    assert call(engine).exit_code == 0
    assert len(rows(engine)) == 3


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["sqlite:///nowhere/at/all"], "the outbox cannot be read: there is no file nowhere"),
        (["nonsense"], "the outbox cannot be read: "),
        (["sqlite+aiosqlite://"], "the outbox cannot be read: no such table: mx_rmq_outbox\n"),
        (["sqlite://", "--table", "a b"], "table 'a b' must consist of"),
        (["sqlite://", "--retry", "--discard"], "either --retry or --discard"),
    ],
)
def test_a_database_that_cannot_be_read_is_a_clear_error(words: list[str], says: str) -> None:
    told = CliRunner().invoke(main, ["outbox", *words])
    assert told.exit_code == 2
    assert says in told.stderr


def test_without_sqlalchemy_the_command_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    told = CliRunner().invoke(main, ["outbox", "sqlite://"])
    assert told.exit_code == 2
    assert "this needs SQLAlchemy: " in told.stderr


async def test_doctor_checks_the_outbox_of_a_database(
    server: Server, mq: MessageQueue, engine: Engine
) -> None:
    url = engine.url.render_as_string(hide_password=False)
    told = await run(server, "doctor", "--outbox", url)
    assert "ok   outbox mx_rmq_outbox: 0 rows to send" in told.stdout
    write(engine, "too large")
    told = await run(server, "doctor", "--outbox", url)
    assert told.exit_code == 1
    assert "bad  outbox mx_rmq_outbox: 1 row parked" in told.stdout


def test_rows_that_wait_for_long_are_bad() -> None:
    (fine,) = check_outbox("o", waiting=5, oldest=LATE, parked=0)
    (late,) = check_outbox("o", waiting=5, oldest=LATE + 1, parked=0)
    assert (fine.bad, late.bad) == (False, True)
    assert late.what == "outbox o: 5 rows to send, the first for 1 min 1 s"


def test_metrics_show_the_latest_measurement_of_each_outbox(mq: MessageQueue) -> None:
    recorder = Recorder(mq)
    for waiting in (5, 3):
        recorder.count(OutboxMeasured("shop", waiting, 1.5, 2))
    page = render(recorder.registry).body.decode()
    assert 'mx_rmq_outbox_waiting{outbox="shop"} 3.0' in page
    assert 'mx_rmq_outbox_oldest_seconds{outbox="shop"} 1.5' in page
    assert 'mx_rmq_outbox_parked{outbox="shop"} 2.0' in page
