"""Schedules: their definitions, in the slot of their topic, and the list of where they are.

A definition is written and removed in its topic's slot, where ticks fire, so that whatever a worker
remembers, it fires nothing that was removed. The list is in another slot. It is written before the
definition, and cleared after it: an entry without a definition means nothing.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.names import SCHEDULE, TOPIC
from mx_rmq.core.schedule import Schedule
from mx_rmq.core.text import brief
from mx_rmq.store.arguments import MAX_BATCH, check_range
from mx_rmq.store.results import Settled, decoded
from mx_rmq.store.script import load

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mx_rmq.net.connection import Value
    from mx_rmq.store.store import Store

MAX_TRIES: Final = 100  # to change an entry that others change at the same time

_decoder = msgspec.json.Decoder(Schedule)


class Pause(NamedTuple):
    since: int  # ms
    reason: str


class StoredSchedule(NamedTuple):
    """A definition, and what has happened to it."""

    schedule: Schedule
    generation: str
    tick: int | None  # the last tick that fired, or when the timetable was stored; ms
    pause: Pause | None


class DeclaredCron(NamedTuple):
    """A cron that workers declare in code."""

    schedule: Schedule
    seen: int  # when a worker last declared it; ms
    tick: int | None
    pause: Pause | None


class ScheduleList(NamedTuple):
    """Every schedule of a queue."""

    version: bytes  # differs after a change
    schedules: dict[str, StoredSchedule]
    crons: dict[str, DeclaredCron]  # by topic


# in the slot of the topic


async def store_schedule(
    store: Store, schedule: Schedule, generation: str, *, by: str = ""
) -> Settled:
    """Store a definition in its topic, in place of the one with the same name."""
    named: dict[str, Value] = {
        "name": schedule.name,
        "generation": generation,
        "timetable": schedule.timetable,
        "definition": msgspec.json.encode(schedule),
        "by": brief(by),
    }
    return Settled((await store.run("store_schedule", schedule.topic, named)).decode())


async def remove_schedule(
    store: Store, topic: str, name: str, *, generation: str = "", by: str = ""
) -> bool:
    """Remove a definition from a topic; return whether there was one.

    With a generation, another definition is left alone.
    """
    named: dict[str, Value] = {"name": name, "generation": generation, "by": brief(by)}
    return bool(Settled((await store.run("remove_schedule", topic, named)).decode()))


async def pause_schedule(
    store: Store, topic: str, name: str, *, reason: str = "", by: str = ""
) -> bool:
    """Stop a schedule from firing; return whether that changed anything.

    An empty name means the topic's cron, which is declared in code.
    """
    named: dict[str, Value] = {
        "name": name,
        "reason": brief(reason),
        "shown": name or topic,
        "by": brief(by),
    }
    return bool(Settled((await store.run("pause_schedule", topic, named)).decode()))


async def resume_schedule(store: Store, topic: str, name: str, *, by: str = "") -> bool:
    """Let a schedule fire again, from now on; return whether it was paused."""
    named: dict[str, Value] = {"name": name, "shown": name or topic, "by": brief(by)}
    return bool(Settled((await store.run("resume_schedule", topic, named)).decode()))


# the list


async def list_schedule(store: Store, name: str = "", before: str = "", after: str = "") -> str:
    """Change where a schedule is, if it is where the caller saw it; return where it is then.

    Workers are told. Without a name, they are only told that something has changed.
    """
    script = load("list_schedule")
    named: dict[str, Value] = {
        "name": name,
        "before": before,
        "after": after,
        "channel": store.keys.schedule_topics,
    }
    args = script.arguments(named)
    return decoded(await store.caller.run(script, [store.keys.schedule_topics], args))


async def declare_crons(store: Store, crons: Mapping[str, Schedule], *, forget: int) -> None:
    """Note which crons a worker declares, and forget those that none has for `forget` ms."""
    script = load("declare_crons")
    items: list[Value] = []
    for topic, schedule in crons.items():
        items += (topic, msgspec.json.encode(schedule))
    for start in range(0, len(items) or 1, 2 * MAX_BATCH):
        named: dict[str, Value] = {
            "forget_ms": check_range("forget", forget, 0),
            "now_ms": store.now(),
        }
        args = script.arguments(named, items[start : start + 2 * MAX_BATCH])
        await store.caller.run(script, [store.keys.schedule_topics], args)


async def put_schedule(store: Store, schedule: Schedule, *, by: str = "") -> None:
    """Store a schedule, in place of the one with its name, in whatever topic that is."""
    topic, generation = schedule.topic, secrets.token_hex(8)
    if topic not in store.partitions:
        await store.register(topic)
    place = f"{topic} {generation}"
    for _ in range(MAX_TRIES):
        before = await _place_of(store, schedule.name)
        others = {one: seen for one, seen in _places_in(before).items() if one != topic}
        listed = " ".join([place, *(f"{one} {seen}" for one, seen in others.items())])
        if await list_schedule(store, schedule.name, before, listed) == listed:
            break
    else:
        raise InvalidInput(f"schedule {schedule.name!r} is being changed elsewhere: try again")
    paused = [_pause(await _pause_in(store, other, schedule.name)) for other in others]
    await store_schedule(store, schedule, generation, by=by)
    for pause in filter(None, paused):  # it stays paused, as in the same topic
        await pause_schedule(store, topic, schedule.name, reason=pause.reason, by=by)
    for other, seen in others.items():  # not one that was stored there since we saw the list
        await remove_schedule(store, other, schedule.name, generation=seen, by=by)
    # Even if nothing has to be taken out of the list: workers may have read it too early.
    now = await list_schedule(store, schedule.name, listed, place)
    if topic not in _places_in(now):  # another caller replaced or removed it meanwhile
        await remove_schedule(store, topic, schedule.name, generation=generation, by=by)


async def drop_schedule(store: Store, name: str, *, by: str = "") -> bool:
    """Remove a schedule; return whether there was one."""
    listed = await _place_of(store, name)
    found = [await remove_schedule(store, topic, name, by=by) for topic in _places_in(listed)]
    if listed:
        await list_schedule(store, name, listed, "")
    return any(found)


async def _place_of(store: Store, name: str) -> str:
    return decoded(await store.caller.command("HGET", store.keys.schedule_topics, name) or b"")


async def _pause_in(store: Store, topic: str, name: str) -> bytes | None:
    found: bytes | None = await store.caller.command(
        "HGET", store.keys.of(topic).schedules, f"!{name}"
    )
    return found


def _places_in(listed: str) -> dict[str, str]:
    """Return the topics of an entry, newest first, and the generation of each definition."""
    words = listed.split(" ")
    pairs = zip(words[::2], words[1::2], strict=False)
    return {topic: generation for topic, generation in pairs if TOPIC.fullmatch(topic)}


# reading


async def schedules_version(store: Store) -> bytes:
    """Return a number that differs after a change; empty: there was never a schedule."""
    version: bytes | None = await store.caller.command("HGET", store.keys.schedule_topics, "")
    return version or b""


async def read_schedules(store: Store, only: str | None = None) -> ScheduleList:
    """Return every schedule and every declared cron, or those of one name."""
    key = store.keys.schedule_topics
    listed: dict[str, bytes] = {}
    if only is None:
        fields = await store.caller.command("HGETALL", key)
        listed = {decoded(field): value for field, value in fields.items()}
    else:
        values = await store.caller.command("HMGET", key, only, f"!{only}")
        listed = {
            field: value
            for field, value in zip((only, f"!{only}"), values, strict=True)
            if value is not None
        }
    version = listed.pop("", b"")
    places = {
        name: list(_places_in(decoded(value)))
        for name, value in listed.items()
        if SCHEDULE.fullmatch(name)
    }
    declared = {
        field[1:]: value
        for field, value in listed.items()
        if field[:1] == "!" and TOPIC.fullmatch(field[1:])
    }
    wanted: dict[str, list[str]] = {topic: [""] for topic in declared}
    for name, topics in places.items():
        for topic in topics:
            wanted.setdefault(topic, []).append(name)
    answers = await asyncio.gather(*(_read_topic(store, *one) for one in wanted.items()))
    fields_of = dict(zip(wanted, answers, strict=True))
    schedules = {
        name: stored
        for name, topics in places.items()
        if (stored := _newest(name, [fields_of[topic] for topic in topics]))
    }
    crons = {
        topic: cron
        for topic, value in declared.items()
        if (cron := await _declared(store, topic, value, fields_of[topic]))
    }
    return ScheduleList(version, schedules, crons)


async def _read_topic(store: Store, topic: str, names: list[str]) -> dict[str, bytes]:
    """Return what a topic says of these schedules, by field: see `schedules` in keys.py."""
    found: dict[str, bytes] = {}
    fields = [field for name in names for field in (name, f"!{name}", f"@{name}")]
    for start in range(0, len(fields), MAX_BATCH):
        some = fields[start : start + MAX_BATCH]
        values = await store.caller.command("HMGET", store.keys.of(topic).schedules, *some)
        found |= {
            field: value for field, value in zip(some, values, strict=True) if value is not None
        }
    return found


def _newest(name: str, places: list[dict[str, bytes]]) -> StoredSchedule | None:
    """Return the definition of a schedule from the first place that has one."""
    for fields in places:
        generation, _, rest = fields.get(name, b"").partition(b" ")
        try:
            schedule = _decoder.decode(rest.partition(b" ")[2])
        except msgspec.DecodeError:  # there is none, or a newer release wrote it
            continue
        tick = _number(fields.get(f"@{name}"))
        return StoredSchedule(schedule, decoded(generation), tick, _pause(fields.get(f"!{name}")))
    return None


async def _declared(
    store: Store, topic: str, value: bytes, fields: dict[str, bytes]
) -> DeclaredCron | None:
    seen, _, declaration = value.partition(b" ")
    try:
        schedule = _decoder.decode(declaration)
    except msgspec.DecodeError:
        return None
    tick = await store.caller.command("HGET", store.keys.of(topic).meta, "tick")
    return DeclaredCron(schedule, _number(seen) or 0, _number(tick), _pause(fields.get("!")))


def _pause(value: bytes | None) -> Pause | None:
    if value is None:
        return None
    since, _, reason = value.partition(b" ")
    return Pause(_number(since) or 0, decoded(reason))


def _number(value: bytes | None) -> int | None:
    return int(value) if value and value.isdigit() and len(value) < 17 else None
