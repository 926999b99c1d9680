"""The loader: a script's signature is read from its own first lines."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.store import script as loader
from mx_rmq.store.keys import Keys
from mx_rmq.store.script import Script, load, names
from mx_rmq.store.transitions import Transitions
from tests.store.contracts import ONE_SERVER

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.store import Store

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "src/mx_rmq/store/lua").glob("*.lua"))

SOURCE = """\
-- example: pending -> processing
local payload = KEYS[1]  -- HASH  id -> record
local pending_low    = KEYS[2] -- LIST  ids
local receipt = KEYS[3]  -- STRING  number and answer

local now_ms = ARGV[1]           -- the time
local call   = tonumber(ARGV[2]) -- its number
local each   = 3                 -- per message: id, token ,record

local other = ARGV[each]
redis.call('HSET', payload, 'KEYS[9]', redis.pcall('LLEN', pending_low))
return redis.call('GET', receipt)
"""


def test_the_signature_is_read_from_the_source() -> None:
    script = Script.parse("example", SOURCE)
    assert (script.name, script.source) == ("example", SOURCE)
    assert script.keys == ("payload", "pending_low", "receipt")
    assert script.types == ("HASH", "LIST", "STRING")
    assert script.args == ("now_ms", "call")
    assert script.each == ("id", "token", "record")
    assert not script.repeated
    assert script.commands == {"HSET", "LLEN", "GET"}
    assert script.sha == hashlib.sha1(SOURCE.encode()).hexdigest()


def test_a_script_may_take_nothing() -> None:
    script = Script.parse("example", "return 1\n")
    assert (script.keys, script.types, script.args, script.each) == ((), (), (), ())
    assert script.arguments({}) == []


@pytest.mark.parametrize(
    ("there", "instead", "message"),
    [
        ("KEYS[3]", "KEYS[4]", r"example.lua: KEYS are numbered \[1, 2, 4\]"),
        ("KEYS[2]", "KEYS[1]", r"example.lua: KEYS are numbered \[1, 1, 3\]"),
        ("KEYS[1]", "KEYS[0]", r"example.lua: KEYS are numbered \[0, 2, 3\]"),
        ("-- LIST  ids", "", r"example.lua: KEYS are numbered \[1, 3\]"),
        ("ARGV[2]", "ARGV[3]", r"example.lua: ARGV are numbered \[1, 3\]"),
        ("ARGV[1] ", "ARGV[2] ", r"example.lua: ARGV are numbered \[2, 2\]"),
        ("= 3  ", "= 4  ", "example.lua: each = 4, but 2 arguments precede it"),
        ("= 3  ", "= 2  ", "example.lua: each = 2, but 2 arguments precede it"),
    ],
)
def test_a_gap_or_a_wrong_order_is_refused(there: str, instead: str, message: str) -> None:
    assert there in SOURCE
    with pytest.raises(ValueError, match=message):
        Script.parse("example", SOURCE.replace(there, instead, 1))


def test_keys_may_be_repeated_for_each_of_many_topics() -> None:
    keys, sign, rest = SOURCE.partition("\nlocal now_ms")
    assert Script.parse("example", f"{keys}local stride = 3 -- keys per topic{sign}{rest}").repeated
    assert {name for name in names() if load(name).repeated} == {"survey_topics"}
    with pytest.raises(ValueError, match=r"example.lua: stride = 2, but there are 3 keys"):
        Script.parse("example", f"{keys}local stride = 2 -- keys per topic{sign}{rest}")


def test_arguments_are_put_in_the_scripts_order() -> None:
    script = Script.parse("example", SOURCE)
    assert script.arguments({"call": 7, "now_ms": ""}) == ["", 7]
    items = ("a", 1, b"x", "b", 2, b"y")
    assert script.arguments({"now_ms": "", "call": 7}, items) == ["", 7, *items]


@pytest.mark.parametrize(
    "named", [{}, {"call": 1}, {"now_ms": 1, "cal": 1}, {"now_ms": 1, "call": 1, "worker": "w"}]
)
def test_a_missing_or_an_unknown_argument_is_refused(named: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"example takes .*now_ms.*call.*, not "):
        Script.parse("example", SOURCE).arguments(named)


@pytest.mark.parametrize("item", [("a",), ("a", 1), ("a", 1, b"x", 2)])
def test_an_item_with_too_few_or_too_many_values_is_refused(item: tuple[Any, ...]) -> None:
    count = 3 + len(item)
    with pytest.raises(TypeError, match=f"example takes .*id.* per item, not {count} values"):
        Script.parse("example", SOURCE).arguments({"now_ms": 1, "call": 1}, ["a", 1, b"x", *item])


def test_a_script_without_items_refuses_one() -> None:
    with pytest.raises(TypeError):
        load("pause_topic").arguments({}, ["a"])


# the scripts that are there


def test_every_file_is_a_script_and_loads_once() -> None:
    assert names() == tuple(file.stem for file in FILES)
    for name in names():
        assert load(name) is load(name)
        assert load(name).name == name
        assert load(name).commands


def test_an_unknown_script_is_not_found() -> None:
    with pytest.raises(FileNotFoundError):
        load("no_such_script")


def test_every_key_of_a_script_is_a_topics_key_of_that_type() -> None:
    keys = Keys().of("t")
    known = {field.name for field in fields(keys)}
    chosen = {"receipt": "STRING", "archive": "ZSET", "archive_payload": "HASH"}
    chosen |= {"hash": "HASH", "scratch": "SET", "workers": "HASH", "topics": "HASH"}
    chosen |= {"caretaker": "STRING", "maker": "STRING"}
    for name in names():
        script = load(name)
        for key, kind in zip(script.keys, script.types, strict=True):
            if key in known:
                assert kind.lower() == keys.types()[getattr(keys, key)], (name, key)
            else:
                assert kind == chosen[key], (name, key)


def test_every_transition_has_a_method_of_the_same_name() -> None:
    reads = {"inspect_message", "scan_fields", "count_messages", "find_history"}
    reads |= {"weigh_fields", "weigh_hash"}
    assert {name for name in names() if not hasattr(Transitions, name)} == {"preflight", *reads}


@ONE_SERVER
async def test_the_server_calls_each_script_by_the_same_sha(store: Store, raw: Redis) -> None:
    for name in names():
        assert await raw.script_load(load(name).source) == load(name).sha


async def test_a_script_that_the_server_has_forgotten_is_sent_again(
    store: Store, raw: Redis
) -> None:
    for _ in range(2):
        await raw.script_flush()
        assert await store.get_next_delay_task("t") is None
        assert await raw.script_exists(load("get_next_delay_task").sha) == [True]


# the package


def wheel(directory: Path) -> Path:
    """Build the wheel as a release would, without a network."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = directory.glob("*.whl")
    return built


def test_the_wheel_carries_every_script_and_can_load_them(tmp_path: Path) -> None:
    built = wheel(tmp_path)
    with zipfile.ZipFile(built) as archive:
        held = set(archive.namelist())
    assert {f"mx_rmq/store/lua/{file.name}" for file in FILES} <= held
    assert "mx_rmq/py.typed" in held
    program = (
        "from mx_rmq.store import script\n"
        "print(script.__file__)\n"
        "for name in script.names(): print(name, script.load(name).sha)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(built)},
        check=True,
        capture_output=True,
        text=True,
    )
    origin, *loaded = run.stdout.splitlines()
    assert origin.startswith(str(built))
    assert origin != loader.__file__
    assert loaded == [f"{name} {load(name).sha}" for name in names()]
