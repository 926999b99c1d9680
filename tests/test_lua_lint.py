"""The rules for scripts hold: in their text, on every server, and while they run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from mx_rmq.core.errors import ScriptFailed
from mx_rmq.core.schedule import Schedule
from mx_rmq.net.url import connect
from mx_rmq.store.keys import Keys
from mx_rmq.store.preflight import preflight
from mx_rmq.store.script import LUA, Script, load, names
from mx_rmq.store.store import Store
from tests.lab.cases import CASES, Stage
from tests.lab.clock import Clock
from tests.lab.lua_blocks import with_block
from tests.lab.lua_guard import Guarded
from tests.lab.lua_lint import KEYLESS, NOTES, PROBES, READS, WRITES, lint, lint_block, lint_uses
from tests.lab.messages import TOPIC

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.lab.servers import Server

SHARED = LUA / "shared"

HEAD = """\
-- good: from -> to
--
-- What it does.
--
-- Returns  1
-- Cost     O(1)

-- keys: hash | pending
-- keys: pending_low
local id    = ARGV.id              -- the message
local delay = tonumber(ARGV.delay) -- how long

"""
BODY = """\
local kept = redis.call('HGET', hash, id)
for _, key in ipairs({pending, pending_low}) do redis.call('LLEN', key) end
redis.call('HDEL', hash, id)
for _, key in ipairs({pending, pending_low}) do redis.call('LREM', key, 1, id) end
return kept
"""
GOOD = {
    "a script": BODY,
    "a table of pairs": """\
        local pairs_of_keys, moves = {{hash, pending}, {hash, pending_low}}, {}
        for _, pair in ipairs(pairs_of_keys) do
          local n = redis.call('HLEN', pair[1]) + redis.call('LLEN', pair[2])
          moves[#moves + 1] = {pair[2], n}
        end
        for _, move in ipairs(moves) do
          local target, n = unpack(move)
          redis.call('LPUSH', target, n)
        end""",
    "a key chosen by name": """\
        local chosen = ({first = pending, second = pending_low})[id]
        redis.call('LLEN', chosen)
        redis.call('LPUSH', chosen, id)""",
    "an extra key": "return redis.call('HGET', KEYS[tonumber(id)], 'f')",
    "keys that are repeated": """\
local stride = 3 -- keys per topic: those above are the first one's
for first = 1, #KEYS, stride do
  hash, pending, pending_low = unpack(KEYS, first, first + stride - 1)
  redis.call('HLEN', hash)
  for _, key in ipairs({pending, pending_low}) do redis.call('LLEN', key) end
end""",
    "a guarded table": """\
        for _, key in ipairs(delay == 1 and {pending, pending_low} or {}) do
          redis.call('LLEN', key)
        end""",
    "all of the grammar": """\
        local function f(a, ...) if not a then return -1 elseif a == 2 then a = 3 else end end
        local t = {1, x = 2; ['y'] = 3, f(id), [[long]]} -- comment
        --[[ a long
        comment ]]
        while delay > 0x10 do delay = delay - 1e1 / 2 % 3 ^ 2 .. '' break end
        repeat local done = (id):sub(1) == 'it\\'s' until #t >= 1 and t.x ~= nil or false
        for i = 1, 10, 2 do t[i] = i end;
        do f{1} f'x' end""",
}
BAD = {
    "a key that is a literal": ("redis.call('GET', 'a')", "the key of GET is not one of KEYS"),
    "a key that is built": ("redis.call('HGET', hash .. id, id)", "the key of HGET is not one"),
    "a key from an argument": ("redis.pcall('HGET', id, id)", "the key of HGET is not one of KEYS"),
    "a key from a server's reply": (
        "for _, key in ipairs(redis.call('LRANGE', pending, 0, -1)) do redis.call('GET', key) end",
        "the key of GET is not one of KEYS",
    ),
    "a table with a foreign key": (
        "for _, key in ipairs({pending, id}) do redis.call('LLEN', key) end",
        "the key of LLEN is not one of KEYS",
    ),
    "a key that was overwritten": (
        "pending = id redis.call('LLEN', pending)",
        "the key of LLEN is not",
    ),
    "a key that is shadowed": (
        "for _, pending in ipairs({id}) do redis.call('LLEN', pending) end",
        "the key of LLEN is not one of KEYS",
    ),
    "no key": ("redis.call('LLEN')", "the key of LLEN is not one of KEYS"),
    "a command by a variable": ("redis.call(id, pending)", "the command is not a literal"),
    "redis.call by another name": ("local call = redis.call", "redis.call: only redis.call(…) and"),
    "another of redis' functions": ("redis.log(1, id)", "redis.log: only redis.call(…) and"),
    "an unknown command": (
        "redis.call('FLUSHALL', pending)",
        "FLUSHALL is neither a known read nor",
    ),
    "a read after a write": (
        "redis.call('LLEN', pending) redis.call('LPUSH', pending, 1) redis.call('LLEN', pending)",
        "LLEN reads after LPUSH has written",
    ),
    "a write to a key that nothing has read": (
        "redis.call('LLEN', pending) redis.call('LPUSH', pending_low, 1)",
        "LPUSH writes pending_low, whose type no read has proven",
    ),
    "a write to a key when another one was read": (
        "redis.call('LLEN', ({pending, pending_low})[delay]) redis.call('LPUSH', pending_low, 1)",
        "LPUSH writes pending_low, whose type no read has proven",
    ),
    "a note that ends the script": (
        "redis.call('HINCRBY', hash, id, 1)",
        "HINCRBY is a note, which may fail: use redis.pcall",
    ),
    "a command on another type": ("redis.call('LLEN', hash)", "LLEN on hash, a HASH"),
    "goto": ("goto done", "Lua 5.1 has no goto"),
    "a label": ("::done::", "Lua 5.1 has no ::"),
    "integer division": ("local a = 7 // 2", "Lua 5.1 has no //"),
    "bitwise and": ("local a = 7 & 2", "Lua 5.1 has no &"),
    "bitwise or": ("local a = 7 | 2", "Lua 5.1 has no |"),
    "bitwise xor": ("local a = 7 ~ 2", "Lua 5.1 has no ~"),
    "bitwise not": ("local a = ~7", "Lua 5.1 has no ~"),
    "a shift": ("local a = 7 << 2", "Lua 5.1 has no <<"),
    "a shift to the right": ("local a = 7 >> 2", "Lua 5.1 has no >>"),
    "an attribute": ("local a <const> = 7", "Lua 5.1 has no <attribute>"),
    "a code point": (r"local a = '\u{41}'", r"Lua 5.1 has no \u in a string"),
    "a hexadecimal escape": (r"local a = 'a\\\x41'", r"Lua 5.1 has no \x in a string"),
    "a hexadecimal fraction": ("local a = 0x1p4", "not Lua 5.1: could not convert"),
    "a syntax error": ("if id then", "not Lua: <EOF>"),
    "table.unpack": ("local a = table.unpack({})", "table.unpack: Lua 5.1 has none"),
    "table.pack": ("local a = table.pack(1)", "table.pack: Lua 5.1 has none"),
    "math.tointeger": ("local a = math.tointeger(1)", "math.tointeger: not among the names"),
    "utf8": ("local a = utf8.char(1)", "utf8.char: Lua 5.1 has none"),
    "tostring": ("local a = tostring(1)", "tostring: it keeps 14 digits"),
    "cjson": ("local a = cjson.decode(id)", "cjson.decode: user bytes are never parsed"),
    "cmsgpack": ("local a = cmsgpack.pack(id)", "cmsgpack.pack: user bytes are never parsed"),
    "loadstring": ("loadstring(id)()", "loadstring: a script is one text"),
    "a global": ("a = 1", "a is assigned to, but not local"),
    "an unknown name": ("local a = os.time()", "os.time: not among the names"),
    "a long line": ("-- " + "x" * 98, "101 characters; the limit is 100"),
}
REPEATED = """\
local stride = 3 -- keys per topic: …
{} = unpack(KEYS, first, first + stride - 1)
redis.call('HLEN', hash)
local id"""
BAD_HEADS = {
    "another name": ("-- good:", "-- bad:", "the header does not begin with good: from -> to"),
    "no Returns": ("-- Returns  1\n", "", "the header has no Returns"),
    "no Cost": ("-- Cost     O(1)\n", "", "the header has no Cost"),
    "a key that is not in keys.py": ("pending_low", "pending_lo", "pending_lo is not a key in"),
    "a key that is named twice": ("pending_low", "pending", "pending is named twice"),
    "a key with a position": (
        "-- keys: pending_low",
        "local pending_low = KEYS[3]",
        "good.lua:9: name it in -- keys: or as ARGV.name, not KEYS[…]",
    ),
    "keys below ARGV": (
        "local delay",
        "-- keys: meta\nlocal delay",
        "meta comes after ARGV",
    ),
    "an argument with a position": ("ARGV.id", "ARGV[1]", "or as ARGV.name, not ARGV[…]"),
    "an argument by another name": ("ARGV.id", "ARGV.token", "must have its argument's name"),
    "an argument that is taken twice": (
        "local delay",
        "local id = ARGV.id\nlocal delay",
        "id is taken twice",
    ),
    "a wrong width": (
        "local delay",
        "local each, width = ARGV.each, 3 -- per message: id, token\nlocal delay",
        "width is 3, but an item is id, token",
    ),
    "a wrong stride": (
        "local id",
        "local stride = 2 -- keys per topic: …\nlocal id",
        "stride is 2, but there are 3 keys",
    ),
    "a stride without a use": (
        "local id",
        "local stride = 3 -- keys per topic: …\nlocal id",
        "the keys are repeated, but only the first ones are used",
    ),
    "repeated keys in another order": (
        "local id",
        REPEATED.format("pending, hash, pending_low"),
        "not the keys of the next, by their names: pending, hash, pending_low",
    ),
    "repeated keys that are used as another type": (
        "local id",
        REPEATED.format("hash, pending, pending_low").replace("HLEN", "LLEN"),
        "LLEN on hash, a HASH",
    ),
    "unpacked keys that are not said to be repeated": (
        "local id",
        "local a, b = unpack(KEYS, 1, 2)\nlocal id",
        "not the keys of the next, by their names: a, b",
    ),
}


def test_every_script_keeps_the_rules() -> None:
    scripts = {name: (LUA / f"{name}.lua").read_text() for name in names()}
    assert [problem for name in scripts for problem in lint(name, scripts[name])] == []
    blocks = {file.name.removesuffix(".lua"): file.read_text() for file in SHARED.iterdir()}
    assert [problem for name in blocks for problem in lint_block(name, blocks[name])] == []
    assert lint_uses(scripts, blocks) == []


def test_the_lint_knows_every_command_and_every_exception_is_a_script() -> None:
    used = frozenset[str]().union(*(load(name).commands for name in names()))
    assert used == {*READS, *WRITES, *NOTES, *KEYLESS}
    assert set(PROBES) <= set(names())


@pytest.mark.parametrize("body", GOOD.values(), ids=GOOD)
def test_the_lint_accepts(body: str) -> None:
    assert lint("good", HEAD + body) == []


@pytest.mark.parametrize(("body", "problem"), BAD.values(), ids=BAD)
def test_the_lint_refuses(body: str, problem: str) -> None:
    (found,) = lint("good", HEAD + body)
    assert re.fullmatch(rf"good\.lua:\d+: {re.escape(problem)}.*", found)


@pytest.mark.parametrize(("old", "new", "problem"), BAD_HEADS.values(), ids=BAD_HEADS)
def test_the_lint_refuses_a_head_with(old: str, new: str, problem: str) -> None:
    found = lint("good", HEAD.replace(old, new, 1) + BODY)
    assert any(problem in one for one in found)


def test_the_lint_says_where() -> None:
    assert lint("good", HEAD + BODY + "-- " + "x" * 98)[0].startswith("good.lua:18: ")


def test_the_lint_says_where_in_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    with_block(monkeypatch, "wide", "-- wide: x\n\n-- " + "x" * 98)
    assert lint("good", HEAD + "-- use: wide\n" + BODY) == [
        "shared/wide.lua:3: 101 characters; the limit is 100"
    ]


def test_the_lint_refuses_a_block_whose_needs_a_script_does_not_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_block(monkeypatch, "sum", "-- needs: a, id\n\nlocal sum = a .. id")
    assert lint("good", HEAD + "local a = 1\n-- use: sum\n") == []
    assert lint("good", HEAD + "-- use: sum\nlocal a = 1\n") == [
        "shared/sum.lua:3: a: not among the names that scripts use"
    ]


def test_the_lint_refuses_a_name_that_is_defined_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    with_block(monkeypatch, "two", "-- defines: kept\n\nlocal kept = 2")
    assert lint("good", HEAD + BODY.replace("return", "-- use: two\nreturn")) == [
        "shared/two.lua:3: kept is defined twice"
    ]


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ("local a = b", "needs b, not nothing"),
        ("-- needs: b, c\nlocal function a() return b end", "needs b, not b, c"),
        ("-- needs: b\n-- needs: c\nlocal a = c\nb = a", ""),
        ("-- needs: d\nlocal a = #d.high", ""),
        ("a = 1", "needs a, not nothing"),
        ("-- defines: a, b\nlocal a = 1\ndo local b = 1 end", "defines a, not a, b"),
        ("local a = redis.call('TIME')", "defines a, not nothing"),
    ],
)
def test_the_lint_compares_a_block_with_its_header(block: str, problem: str) -> None:
    if "-- defines: " not in block and not problem.startswith("defines"):
        block = "-- defines: a\n" * ("local" in block) + block
    assert lint_block("x", f"-- x: …\n{block}") == [f"shared/x.lua: {problem}"] * bool(problem)


def test_the_lint_refuses_a_block_without_its_name() -> None:
    assert lint_block("x", "-- y: …\n\nreturn 1\n") == [
        "shared/x.lua: the header does not begin with x: …"
    ]


def test_the_lint_refuses_a_block_that_is_used_once() -> None:
    scripts = {"one": "-- use: x, y\n", "two": "if a then\n  -- use: x\nend\n"}
    assert lint_uses(scripts, ["x", "y", "z"]) == [
        "shared/y.lua is used 1 times",
        "shared/z.lua is used 0 times",
    ]


async def test_every_script_compiles_under_the_name_that_we_call_it_by(raw: Redis) -> None:
    for name in names():
        script = load(name)
        assert await raw.script_load(script.source) == script.sha


async def test_every_script_keeps_the_rules_while_it_runs(raw: Redis, server: Server) -> None:
    servers = await connect(server.url)
    caller, keys = Guarded(servers), Keys()
    found = await preflight(caller, keys)
    for case in CASES:
        await raw.flushall()
        clock = Clock()
        store = Store(caller, keys, found, clock=clock)
        seeded = await case.seed(Stage(store, clock, TOPIC))
        assert await case.act(store, TOPIC, seeded) == case.done, case
        await store.get_next_delay_task(TOPIC)
        await store.survey_topics([TOPIC, "other"])
        await store.undated_messages(TOPIC, 1, 0)
        await store.beat_worker("w1", b"{}", forget=1)
        await store.tend_topics("w1", turn=1000)
        await store.give_up_turn("w1")
        await store.list_schedule("s", "", f"{TOPIC} g")
        await store.declare_crons(
            {TOPIC: Schedule(name="", topic=TOPIC, expression="* * * * *")}, forget=1
        )
        await store.views.counts(TOPIC)
        await store.read_status(TOPIC, ["a", "b", "c"], live=True, with_progress=True)
        await store.views.history.of(TOPIC, "a")
        await raw.hset(keys.of(TOPIC).payload, "stray", "?")  # a suspect for the audit
        assert await store.views.pages._contents(keys.of(TOPIC).payload, [b"stray"]) == [b"?"]
        assert await store.memory.holders(keys.of(TOPIC).payload)
        assert [violation.id for violation in await store.audit.topic(TOPIC)] == ["stray"]
    assert caller.ran == set(names())
    await servers.close()


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("redis.call('LLEN', 'built' .. id)", "LLEN on a key that is not declared: builtx"),
        ("redis.pcall('LLEN', id)", "LLEN on a key that is not declared: x"),
        (
            "redis.call('HLEN', hash) redis.call('HDEL', hash, 1) redis.call('LLEN', pending)",
            "LLEN reads after HDEL has written",
        ),
        ("redis.call('LPUSH', pending, 1)", "LPUSH writes a key that nothing has read: l"),
        ("redis.call('FLUSHALL', pending)", "FLUSHALL is neither a known read nor a known write"),
    ],
)
async def test_the_guard_stops(raw: Redis, server: Server, body: str, problem: str) -> None:
    servers = await connect(server.url)
    script = Script.parse("good", HEAD + body)
    with pytest.raises(ScriptFailed, match=problem):
        await Guarded(servers).run(script, ["h", "l", "o"], ["x", 1])
    await servers.close()
