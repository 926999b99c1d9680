"""edit: another payload, from an option, a file or an editor."""

from __future__ import annotations

import asyncio
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from mx_rmq.admin import Admin
from mx_rmq.core.message import State
from tests.cli.calls import HOSTILE, MX_RMQ, at_a_terminal, harmless, run, run_json
from tests.lab.archives import ARCHIVES
from tests.lab.crew import until
from tests.lab.messages import TOPIC, bring, pending, settle, take
from tests.lab.servers import Kind

if TYPE_CHECKING:
    from pathlib import Path

    from redis.asyncio import Redis

    from mx_rmq.store.store import Store
    from tests.lab.clock import Clock
    from tests.lab.servers import Server

pytestmark = pytest.mark.parametrize("kind", [Kind.VALKEY_9_1], indirect=True)


@pytest.mark.parametrize("state", ARCHIVES)
async def test_a_payload_is_given_or_read_from_a_file(
    store: Store, server: Server, state: State, tmp_path: Path
) -> None:
    first, second = await bring(store, state), await bring(store, state)
    told = await run(server, "edit", TOPIC, first.id, "--payload", '{"ü": [1]}', "--yes")
    assert (told.exit_code, told.stdout) == (0, f"{first.id}: edited and requeued\n")
    file = tmp_path / "payload.json"
    file.write_text('"from a file"')
    words = ("edit", TOPIC, second.id, "--payload-file", str(file), "--state", state, "--yes")
    assert await run_json(server, *words) == {"topic": TOPIC, "id": second.id, "edited": True}
    payloads = [one.payload for one in (await Admin(store).list(TOPIC, "pending")).messages]
    assert payloads == [{"ü": [1]}, "from a file"]


async def test_only_an_archived_message_can_be_edited(store: Store, server: Server) -> None:
    dead = (await bring(store, State.DEAD)).id
    (live,) = await pending(store)
    for words, expected in (
        ((live,), f"message '{live}' is pending, not dead or quarantined\n"),
        ((live, "--state", "dead"), f"message '{live}' is pending, not dead\n"),
        ((dead, "--state", "quarantined"), f"message '{dead}' is dead, not quarantined\n"),
        (("nope",), f"no message 'nope' in topic '{TOPIC}'\n"),
        (("\x1b[2J",), "no message "),
    ):
        told = await run(server, "edit", TOPIC, *words, "--payload", "1", "--yes")
        assert (told.exit_code, told.stdout) == (1, "")
        assert told.stderr.startswith(f"Error: {expected}")
        assert harmless(told.stderr)
    found = await run_json(server, "edit", TOPIC, live, "--payload", "1", "--yes", code=1)
    assert found["edited"] is False


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--payload", "{", "--yes"), "Error: the payload is not JSON: { (Expecting"),
        (("--payload", HOSTILE, "--yes"), "Error: the payload is not JSON: \\x1b[2J"),
        (("--payload", '"x"'), "cannot ask for confirmation to requeue dead message"),
        ((), "Error: not a terminal, cannot open an editor: pass --payload or --payload-file"),
        (
            ("--payload", "NaN", "--yes"),
            "Error: a payload of type float cannot be encoded as JSON: nan is not",
        ),
        (("--payload", f'"{"x" * 1_048_577}"', "--yes"), "the payload is 1,048,579 bytes; the"),
        (("--payload", "1", "--payload-file", "-"), "Pass either --payload or --payload-file"),
    ],
)
async def test_what_cannot_be_a_payload_is_refused_and_nothing_done(
    store: Store, server: Server, words: tuple[str, ...], expected: str
) -> None:
    one = await bring(store, State.DEAD)
    failed = await run(server, "edit", TOPIC, one.id, *words)
    assert (failed.exit_code, failed.stdout) == (2, "")
    assert expected in failed.stderr
    assert harmless(failed.stderr)
    assert (await store.views.counts(TOPIC)).dead == 1


@pytest.mark.parametrize(
    ("change", "code", "expected", "left"),
    [
        ("s/0/42/", 0, "edited and requeued", 0),
        ("s/x/y/", 2, "the payload was not changed", 1),
    ],
)
async def test_a_payload_is_edited_in_the_editor(
    store: Store, server: Server, change: str, code: int, expected: str, left: int
) -> None:
    one = await bring(store, State.DEAD)
    master, slave = os.openpty()
    os.write(master, b"y\n")
    told = subprocess.run(
        [MX_RMQ, "edit", TOPIC, one.id, "--url", server.url],
        env={**os.environ, "VISUAL": f"sed -i -e {change}"},
        stdin=slave,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(master)
    os.close(slave)
    assert told.returncode == code, told
    assert expected in told.stdout + told.stderr
    assert (await store.views.counts(TOPIC)).dead == left
    if not left:
        view = await Admin(store).get(TOPIC, one.id)
        assert view is not None
        assert view.payload == 42


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('{"a": 1,\n"b": }\n', 'not JSON: "b": } (Expecting value: line 2 column 6'),
        ('{"a":\n 1}\n', "Error: cancelled, nothing was changed"),
    ],
)
async def test_what_was_edited_in_vain_is_kept_for_its_writer_alone(
    store: Store, server: Server, tmp_path: Path, written: str, expected: str
) -> None:
    one = await bring(store, State.DEAD)
    (tmp_path / "wanted").write_text(written)
    editor = tmp_path / "editor"
    editor.write_text(f'#!/bin/sh\ncat {tmp_path}/wanted >> "$1"\nsed -i "/^0$/d" "$1"\n')
    editor.chmod(0o755)
    words = ("edit", TOPIC, one.id, "--url", server.url)
    kept = tmp_path / "kept"
    kept.mkdir()
    with at_a_terminal(*words, says="n\n", VISUAL=str(editor), TMPDIR=str(kept)) as process:
        _, told = await asyncio.to_thread(process.communicate, timeout=60)
    assert process.returncode == 2, told
    assert expected in told.decode()
    assert "//" not in told.decode()
    (file,) = kept.iterdir()
    assert f"Your text is kept: --payload-file {file}\n" in told.decode()
    assert (file.read_text(), file.stat().st_mode & 0o777) == (written.strip(), 0o600)
    assert (await store.views.counts(TOPIC)).dead == 1


async def test_at_ctrl_c_the_editor_decides(store: Store, server: Server, tmp_path: Path) -> None:
    one = await bring(store, State.DEAD)
    for editor, code, expected in (
        ("kill -INT $PPID $$", 130, "Error: interrupted, nothing was changed\n"),
        ("exit 1", 2, "Editing failed; nothing was changed\n"),
        ("kill -INT $PPID; echo 42 > $1", 0, ""),
    ):
        script = tmp_path / "editor"
        script.write_text(f"#!/bin/sh\n{editor}\n")
        script.chmod(0o755)
        words = ("edit", TOPIC, one.id, "--yes", "--url", server.url)
        with at_a_terminal(*words, VISUAL=str(script)) as process:
            _, told = await asyncio.to_thread(process.communicate, timeout=30)
        assert process.returncode == code, told
        assert told.decode().endswith(expected)
        assert (await store.views.counts(TOPIC)).dead == bool(code)


@pytest.mark.corrupts
@pytest.mark.parametrize(
    ("broken", "mend", "code", "expected", "payload"),
    [
        (b'{"order": 7,\xff', """echo '{"order": 7}' > "$1" """, 0, "", {"order": 7}),
        (b"RECORD", """sed -i '$ s/$/}/' "$1" """, 0, "", 0),
        (b"RECORD", """sed -i '$ s/$/,"topic":"else"}/' "$1" """, 2, "topic 'else'", None),
    ],
)
async def test_of_an_unreadable_record_the_payload_or_the_whole_is_mended(
    store: Store,
    server: Server,
    raw: Redis,
    tmp_path: Path,
    broken: bytes,
    mend: str,
    code: int,
    expected: str,
    payload: object,
) -> None:
    one = await bring(store, State.DEAD)
    key = store.keys.of(TOPIC).dlq_payload
    record = await raw.hget(key, one.id)
    assert record is not None
    await raw.hset(key, one.id, record[:-1] if broken == b"RECORD" else broken)
    editor = tmp_path / "editor"
    editor.write_text(f'#!/bin/sh\ncp "$1" {tmp_path}/seen\n{mend}\n')
    editor.chmod(0o755)
    words = ("edit", TOPIC, one.id, "--yes", "--url", server.url)
    with at_a_terminal(*words, VISUAL=str(editor)) as process:
        _, told = await asyncio.to_thread(process.communicate, timeout=30)
    assert process.returncode == code, told
    assert expected in told.decode()
    hint = (tmp_path / "seen").read_text().splitlines()[0]
    assert hint.startswith(f"// The record of dead message {one.id} of orders: fix it, or replace")
    view = await Admin(store).get(TOPIC, one.id)
    assert view is not None
    assert (view.state is State.PENDING, view.payload) == (not code, payload)


async def test_what_died_anew_while_it_was_edited_is_not_overwritten(
    store: Store, server: Server, clock: Clock, tmp_path: Path
) -> None:
    one = await bring(store, State.DEAD)
    editor = tmp_path / "editor"
    editor.write_text(
        f"#!/bin/sh\ntouch {tmp_path}/open\nwhile [ -e {tmp_path}/open ]; do sleep 0.05; done\n"
        'echo 42 > "$1"\n'
    )
    editor.chmod(0o755)
    words = ("edit", TOPIC, one.id, "--yes", "--url", server.url)
    with at_a_terminal(*words, VISUAL=str(editor)) as process:
        await until((tmp_path / "open").exists)
        assert await Admin(store).requeue(TOPIC, one.id)
        clock.advance(1)
        (again,) = await take(store)
        await settle(store, again, State.DEAD)
        (tmp_path / "open").unlink()
        _, told = await asyncio.to_thread(process.communicate, timeout=30)
    assert process.returncode == 2
    assert b"is no longer the one you saw: another message with this id was archived since" in told
    assert (await store.views.counts(TOPIC)).dead == 1
