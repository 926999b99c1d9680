"""The loader composes a script from its file and shared blocks, and reads its signature."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.core.errors import ScriptFailed
from mx_rmq.net.caller import Caller
from mx_rmq.net.url import connect
from mx_rmq.store import script as loader
from mx_rmq.store.script import Script, load, names, parse_block
from mx_rmq.store.store import Store
from tests.lab.lua_blocks import with_block
from tests.store.contracts import ONE_SERVER

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.lab.servers import Server

ROOT = Path(__file__).parents[2]
LUA = ROOT / "src/mx_rmq/store/lua"
FILES = sorted(LUA.glob("*.lua"))

SOURCE = """\
-- example: pending -> processing
-- keys: payload | pending_low
-- keys: receipt
local now_ms = ARGV.now_ms         -- the time
local call   = tonumber(ARGV.call) -- its number
local each, width = ARGV.each, 3   -- per message: id, token ,record

local other = ARGV[each]
redis.call('HSET', payload, 'KEYS[9]', redis.pcall('LLEN', pending_low))
return redis.call('GET', receipt)
"""


COMPOSED = SOURCE
for written, sent in {
    "-- keys: payload | pending_low": "local payload, pending_low = KEYS[1], KEYS[2]",
    "-- keys: receipt": "local receipt = KEYS[3]",
    "ARGV.now_ms": "ARGV[1]",
    "ARGV.call": "ARGV[2]",
    "ARGV.each": "3",
}.items():
    COMPOSED = COMPOSED.replace(written, sent)


def test_the_signature_is_read_from_the_source() -> None:
    script = Script.parse("example", SOURCE)
    assert (script.name, script.source) == ("example", COMPOSED)
    assert script.keys == ("payload", "pending_low", "receipt")
    assert script.types == ("HASH", "LIST", "STRING")
    assert script.args == ("now_ms", "call")
    assert script.each == ("id", "token", "record")
    assert script.commands == {"HSET", "LLEN", "GET"}
    assert script.sha == hashlib.sha1(COMPOSED.encode()).hexdigest()


def test_a_composed_text_has_the_same_signature() -> None:
    assert replace(Script.parse("example", COMPOSED), lines=()) == replace(
        Script.parse("example", SOURCE), lines=()
    )


def test_a_script_may_take_nothing() -> None:
    script = Script.parse("example", "return 1\n")
    assert (script.keys, script.types, script.args, script.each) == ((), (), (), ())
    assert script.arguments({}) == []


@pytest.mark.parametrize(
    ("there", "instead", "message"),
    [
        ("keys: receipt", "keys: receipts", "example.lua: receipts is not a key in keys.py"),
        ("keys: receipt", "keys: payload", "example.lua: a key is named twice"),
        ("ARGV.call", "ARGV.now_ms", r"example.lua: ARGV are numbered \[2, 2\]"),
        ("ARGV.call", "ARGV[3]", r"example.lua: ARGV are numbered \[1, 3\]"),
        ("ARGV.each", "4", "example.lua: each = 4, but 2 arguments precede it"),
    ],
)
def test_a_gap_or_a_wrong_order_is_refused(there: str, instead: str, message: str) -> None:
    assert there in SOURCE
    with pytest.raises(ValueError, match=message):
        Script.parse("example", SOURCE.replace(there, instead, 1))


def test_keys_may_be_repeated_for_each_of_many_topics() -> None:
    keys, sign, rest = SOURCE.partition("local now_ms")
    Script.parse("example", f"{keys}local stride = 3 -- keys per topic\n{sign}{rest}")
    with pytest.raises(ValueError, match=r"example.lua: stride = 2, but there are 3 keys"):
        Script.parse("example", f"{keys}local stride = 2 -- keys per topic\n{sign}{rest}")


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


# composition

USER = """\
-- example: pending -> processing
-- keys: pending
local id = ARGV.id -- the message

-- use: size, empty
if size > 0 then
  -- use: push
  return redis.call('LLEN', id)
end
return 0
"""


@pytest.fixture
def composed(monkeypatch: pytest.MonkeyPatch) -> Script:
    with_block(
        monkeypatch,
        "size",
        "-- size: x\n-- needs: pending\n-- defines: size\n\n"
        "local size = redis.call('LLEN', pending)\n",
    )
    with_block(monkeypatch, "empty", "-- empty: x\n\nif size == 0 then return 0 end\n")
    with_block(
        monkeypatch,
        "push",
        "-- push: x\n-- needs: id, pending\n\n"
        "if #id > 0 then\n  redis.call('RPUSH', pending, id)\nend\n",
    )
    return Script.parse("example", USER)


def test_a_use_stands_for_a_block_with_its_own_indentation(composed: Script) -> None:
    assert "-- use:" not in composed.source
    assert "-- needs:" not in composed.source
    assert "\nlocal size = redis.call('LLEN', pending)\n" in composed.source
    assert "\n  if #id > 0 then\n    redis.call('RPUSH', pending, id)\n  end\n" in composed.source
    assert composed.commands == {"LLEN", "RPUSH"}
    assert composed.sha == hashlib.sha1(composed.source.encode()).hexdigest()


def test_every_line_knows_its_file_and_number(composed: Script) -> None:
    assert [line.text for line in composed.lines] == composed.source.splitlines()
    places = {line.text.strip(): line.place for line in composed.lines}
    assert places["local pending = KEYS[1]"] == "example.lua:2"
    assert places["local id = ARGV[1] -- the message"] == "example.lua:3"
    assert places["local size = redis.call('LLEN', pending)"] == "shared/size.lua:5"
    assert places["if size == 0 then return 0 end"] == "shared/empty.lua:3"
    assert places["redis.call('RPUSH', pending, id)"] == "shared/push.lua:5"
    assert places["return 0"] == "example.lua:10"


def test_a_block_cannot_use_a_block() -> None:
    with pytest.raises(ValueError, match=r"shared/x.lua:2: a block cannot use a block"):
        parse_block("x", "-- needs: a\n  -- use: clock\n")


def test_a_block_that_does_not_exist_is_refused() -> None:
    with pytest.raises(FileNotFoundError):
        Script.parse("example", "-- use: no_such_block\n")


@pytest.mark.parametrize("words", ["@user_script:{}: Wrong", "f_1: @user_script: {}: Wrong"])
def test_an_error_names_the_file_and_the_line_that_we_wrote(composed: Script, words: str) -> None:
    at = [line.text.strip() for line in composed.lines].index(
        "redis.call('RPUSH', pending, id)"
    ) + 1
    told = composed.place_lines(f"ERR {words.format(at)} (user_script:{at}, user_script:999)")
    assert told.count("shared/push.lua:5") == 2
    assert "user_script:999" in told
    assert composed.call_at(words.format(at), ["mx:{t}:pending"]) == "RPUSH mx:{t}:pending"
    assert composed.call_at(words.format(1), ["mx:{t}:pending"]) is None
    assert composed.call_at("ERR", ["mx:{t}:pending"]) is None


async def test_a_server_that_fails_in_a_block_is_quoted_with_the_blocks_line(
    store: Store, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_block(monkeypatch, "broken", "-- broken: x\n-- needs: id\n\nlocal sum = id + {}\n")
    head, _, _ = USER.partition("-- use:")
    script = Script.parse("example", f"{head}redis.call('LLEN', pending)\n-- use: broken\n")
    servers = await connect(server.url)
    with pytest.raises(ScriptFailed, match=r"^example: .*shared/broken\.lua:4: .*arithmetic"):
        await Caller(servers, patience=10.0).run(script, ["l"], ["x"])
    await servers.close()


def test_composition_is_deterministic() -> None:
    for name in names():
        source = (LUA / f"{name}.lua").read_text()
        assert Script.parse(name, source) == load(name)
        assert "-- use:" not in load(name).source


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


def test_every_transition_has_a_method_of_the_same_name() -> None:
    reads = {"inspect_message", "scan_fields", "count_messages", "find_history"}
    reads |= {"weigh_fields", "weigh_hash", "scan_signals"}
    assert {name for name in names() if not hasattr(Store, name)} == {"preflight", *reads}


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
    files = {file.relative_to(LUA) for file in LUA.rglob("*.lua")}
    assert len(files) > len(FILES)
    assert {f"mx_rmq/store/lua/{file}" for file in files} <= held
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
