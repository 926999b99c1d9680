"""`mx-rmq produce`, run as a user runs it."""

from __future__ import annotations

import json
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from mx_rmq import MessageQueue
from mx_rmq.cli import main
from mx_rmq.core import codec
from mx_rmq.core.message import State
from mx_rmq.core.partition import number_for
from tests.conftest import assert_clean
from tests.lab.servers import Kind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from redis.asyncio import Redis

    from mx_rmq.admin import MessageView
    from tests.lab.servers import Server

pytestmark = pytest.mark.parametrize("kind", [Kind.VALKEY_9_1], indirect=True)


@pytest.fixture
async def mq(raw: Redis, server: Server) -> AsyncIterator[MessageQueue]:
    """A queue on an empty server; afterwards the audit must be clean."""
    async with MessageQueue(server.url) as mq:
        yield mq
        await assert_clean(mq.store, raw)


class Shell:
    """Runs the command in a directory, with the server in the environment."""

    def __init__(self, url: str, directory: Path) -> None:
        self._url = url
        self._directory = directory

    def produce(
        self, *words: str, piped: str | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run it in this process, in a thread: it has an event loop of its own."""
        runner = CliRunner(env={"MX_RMQ_URL": self._url, **environment})
        call = partial(runner.invoke, main, ["produce", *words], input=piped or "")
        with chdir(self._directory), ThreadPoolExecutor(1) as thread:
            done = thread.submit(call).result(60)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)

    def refused(self, *words: str, piped: str | None = None, **environment: str) -> str:
        """Run it in vain; return the one line that says why."""
        done = self.produce(*words, piped=piped, **environment)
        assert (done.returncode, done.stdout) == (2, ""), done
        assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr


@pytest.fixture
def shell(mq: MessageQueue, server: Server, tmp_path: Path) -> Shell:
    return Shell(server.url, tmp_path)


async def only(mq: MessageQueue, topic: str, state: State) -> MessageView:
    page = await mq.admin.list(topic, state)
    (message,) = page.messages
    return message


@pytest.mark.parametrize(
    ("text", "payload"),
    [('{"a": [1, "ü"]}', {"a": [1, "ü"]}), ('"text"', "text"), ("null", None), ("1.5", 1.5)],
)
async def test_the_payload_is_json_and_the_id_is_printed(
    shell: Shell, mq: MessageQueue, text: str, payload: object
) -> None:
    done = shell.produce("orders", text)
    assert (done.returncode, done.stderr) == (0, "")
    message = await only(mq, "orders", State.PENDING)
    assert (done.stdout, message.payload) == (f"{message.id}\n", payload)


@pytest.mark.parametrize("words", [[], ["-"]])
async def test_the_payload_may_come_from_a_pipe(
    shell: Shell, mq: MessageQueue, words: list[str]
) -> None:
    done = shell.produce("orders", *words, piped='{"a":\n 1}\n')
    assert done.returncode == 0, done.stderr
    assert (await only(mq, "orders", State.PENDING)).payload == {"a": 1}


async def test_an_embedded_server_that_does_not_exist_is_not_created(
    shell: Shell, tmp_path: Path
) -> None:
    output = shell.refused("t", "1", "--url", f"embedded://{tmp_path}/mistyped")
    assert "no such directory" in output
    assert not (tmp_path / "mistyped").exists()


async def test_every_option_reaches_the_message(shell: Shell, mq: MessageQueue) -> None:
    words = ["--id", "own-1", "--priority", "high", "--ttl", "60", "--header", "a=1"]
    done = shell.produce("orders", "1", *words, "--header", "b=x=y", "--json")
    assert json.loads(done.stdout) == {"ids": ["own-1"]}
    message = await only(mq, "orders", State.PENDING)
    assert (message.id, message.priority, message.headers) == (
        "own-1",
        "high",
        {"a": "1", "b": "x=y"},
    )
    assert message.expires_at is not None


@pytest.mark.parametrize("words", [["--delay", "3600"], ["--at", "2100-01-31T12:00:00+01:00"]])
async def test_a_delayed_message_is_delayed(
    shell: Shell, mq: MessageQueue, words: list[str]
) -> None:
    assert shell.produce("orders", "1", *words).returncode == 0
    message = await only(mq, "orders", State.DELAYED)
    assert message.due is not None
    if "--at" in words:
        assert message.due == datetime(2100, 1, 31, 11, tzinfo=UTC).timestamp()
    else:
        assert 3500 < message.due - time.time() < 3700


async def test_an_id_that_is_taken_makes_no_second_message(shell: Shell, mq: MessageQueue) -> None:
    for _ in range(2):
        assert shell.produce("orders", "1", "--id", "once").stdout == "once\n"
    assert (await mq.admin.stats("orders")).pending == 1


async def test_the_prefix_may_come_from_the_settings_file(
    shell: Shell, server: Server, tmp_path: Path, raw: Redis
) -> None:
    (tmp_path / "mx-rmq.toml").write_text('prefix = "shop"\n')
    assert shell.produce("orders", "1").returncode == 0
    async with MessageQueue(server.url, prefix="shop") as other:
        assert (await other.admin.stats("orders")).pending == 1
    await raw.flushall()  # keys of another prefix are none that the audit knows


# many


async def test_many_lines_are_many_messages_in_order(shell: Shell, mq: MessageQueue) -> None:
    lines = "".join(f"{number}\n\n" for number in range(2500))
    done = shell.produce("orders", "--many", piped=lines)
    assert (done.returncode, done.stderr) == (0, "2,500 messages produced\n")
    ids = done.stdout.splitlines()
    assert len(set(ids)) == 2500 == (await mq.admin.stats("orders")).pending
    for number in (0, 999, 1000, 2499):
        message = await mq.admin.get("orders", ids[number])
        assert message is not None
        assert message.payload == number


async def test_many_as_one_json_document(shell: Shell, mq: MessageQueue) -> None:
    done = shell.produce("orders", "-", "--many", "--json", piped='1\n"two"')
    assert (done.returncode, done.stderr) == (0, "2 messages produced\n")
    assert len(json.loads(done.stdout)["ids"]) == 2


async def test_nothing_in_the_pipe_produces_nothing(shell: Shell) -> None:
    done = shell.produce("orders", "--many")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "0 messages produced\n")


async def test_a_wrong_line_says_its_number_and_what_was_produced(
    shell: Shell, mq: MessageQueue
) -> None:
    lines = "".join(f"{number}\n" for number in range(1200)) + "two words\n"
    done = shell.produce("orders", "--many", piped=lines)
    assert done.returncode == 2
    counted, error = done.stderr.splitlines()
    assert counted == "1,000 messages produced"
    assert error.startswith("Error: line 1,201 is not JSON: two words")
    assert len(done.stdout.splitlines()) == 1000 == (await mq.admin.stats("orders")).pending


async def test_a_full_topic_stops_many_and_the_ids_so_far_are_printed(
    shell: Shell, mq: MessageQueue
) -> None:
    lines = "".join(f"{number}\n" for number in range(1500))
    done = shell.produce("orders", "--many", "--json", piped=lines, MX_RMQ_MAX_PENDING="1200")
    assert done.returncode == 2
    assert "topic 'orders' may have 1,200 messages waiting" in done.stderr
    assert len(json.loads(done.stdout)["ids"]) == 1000 == (await mq.admin.stats("orders")).pending


# partitions


async def test_messages_of_a_key_go_to_the_same_partition(shell: Shell, mq: MessageQueue) -> None:
    await mq.store.register_topics({"orders": 8})
    for number in range(3):
        assert shell.produce("orders", str(number), "--key", "ann").returncode == 0
    lines = "".join(f"{number}\n" for number in range(3, 20))
    assert shell.produce("orders", "--many", "--key", "ann", piped=lines).returncode == 0
    messages = (await mq.admin.list("orders", State.PENDING)).messages
    assert [one.payload for one in messages] == list(range(20))
    assert {one.partition for one in messages} == {number_for("ann", 8)}


async def test_a_key_and_a_cost_reach_the_message(shell: Shell, raw: Redis) -> None:
    assert shell.produce("orders", "1", "--key", "ann", "--cost", "3").returncode == 0
    assert shell.produce("orders", "--many", "--cost", "2", piped="2\n3\n").returncode == 0
    stored: list[bytes] = await raw.hvals("mx-rmq:{orders}:payload")  # type: ignore[assignment]
    records = [codec.decode(one) for one in stored]
    assert sorted((one.cost, one.key) for one in records) == [(2, None), (2, None), (3, "ann")]
    assert shell.refused("orders", "1", "--cost", "0").startswith("Error: cost=0 is not a whole")


async def test_a_message_that_is_not_confirmed_is_stored_and_its_id_told(
    shell: Shell, mq: MessageQueue
) -> None:
    assert shell.produce("orders", "1", "--confirm", "stored").returncode == 0
    failed = shell.refused("orders", "2", "--id", "two", "--confirm", "replicated")
    assert "the message is stored, but not replicated within 1 s" in failed
    assert failed.endswith("; to wait again, pass --id two\n")
    done = shell.produce("orders", "--many", "--confirm", "replicated", piped="3\n4\n")
    assert done.returncode == 2
    counted, error = done.stderr.splitlines()
    assert counted == "2 messages produced"
    assert "2 messages are stored, but not replicated within 1 s" in error
    assert len(done.stdout.splitlines()) == 2
    assert (await mq.admin.stats("orders")).pending == 4


# wrong input


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["t", "text"],
            "the payload is not JSON: text (Expecting value: line 1 column 1 (char 0))",
        ),
        (["t", ""], "the payload is not JSON: "),
        (["t"], "the payload is not JSON: "),
        (
            ["t", "NaN"],
            "a payload of type float cannot be encoded as JSON: nan is not a JSON number",
        ),
        (["t", "[" * 100_000], "the payload is not JSON: "),
        (["t", "1\x1b[31m"], "the payload is not JSON: 1\\x1b[31m"),
        (["bad topic", "1"], "topic 'bad topic' must consist of"),
        (["t", "1", "--at", "tomorrow"], "--at 'tomorrow' is not a time like 2030-"),
        (
            ["t", "1", "--at", "2100-01-31T12:00:00"],
            "at=2100-01-31T12:00:00 has no time zone; in UTC it would be 2100-01-31T12:00:00+00:00",
        ),
        (["t", "1", "--delay", "-1"], "delay=-1.0 is not a number of seconds"),
        (["t", "1", "--header", "a"], "--header 'a' must have the form NAME=VALUE"),
        (["t", "1", "--header", "a=1", "--header", "a=2"], "--header 'a' is given twice"),
        (["t", "1", "--id", "a b"], "message id 'a b' must consist of"),
        (["t", "1", "--many"], "--many takes neither PAYLOAD nor --id"),
        (["t", "--many", "--id", "a"], "--many takes neither PAYLOAD nor --id"),
        (["t", "1", "--prefix", "{"], "prefix="),
        (["t", "1", "--key", ""], "key='' is not a string of 1 to 128"),
        (["t", "1", "--patience", "-1"], "patience=-1.0 is not a number of seconds"),
        (["t", "1", "--url", "http://x"], "URL 'http://x' must start with one of redis://"),
        (
            ["t", "1", "--url", "redis://user:secret@127.0.0.1:1", "--patience", "0.1"],
            "cannot use redis://***@127.0.0.1:1: ",
        ),
    ],
)
async def test_wrong_input_gets_one_line(shell: Shell, words: list[str], line: str) -> None:
    assert shell.refused(*words).startswith(f"Error: {line}")


async def test_what_is_not_json_gets_a_hint(shell: Shell) -> None:
    assert shell.refused("orders", "text").endswith("""; write a string as '"text"'\n""")


async def test_no_url_gets_one_line(shell: Shell) -> None:
    assert shell.refused("orders", "1", MX_RMQ_URL="").startswith("Error: no URL: pass one")


async def test_a_taken_id_is_ignored_replaced_or_an_error(mq: MessageQueue, shell: Shell) -> None:
    assert shell.produce("t", "1", "--id", "own").stdout == "own\n"
    assert shell.produce("t", "2", "--id", "own").stdout == "own\n"
    refused = shell.produce("t", "3", "--id", "own", "--on-duplicate", "error")
    assert refused.returncode == 2
    assert "id 'own' is taken: its message is pending" in refused.stderr
    found = await mq.admin.get("t", "own")
    assert found is not None
    assert found.payload == 1
    words = ("--id", "own", "--on-duplicate", "replace", "--dedup", "0")
    assert shell.produce("t", "4", *words).stdout == "own\n"
    found = await mq.admin.get("t", "own")
    assert found is not None
    assert found.payload == 4
    assert await mq.store.caller.command("ZCARD", mq.store.keys.of("t").recent) == 0


def test_what_needs_an_id_says_so(shell: Shell) -> None:
    for words in (("--on-duplicate", "replace"), ("--dedup", "5")):
        refused = shell.produce("t", "1", *words)
        assert refused.returncode == 2
        assert "needs an id" in refused.stderr
