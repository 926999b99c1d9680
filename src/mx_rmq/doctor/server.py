"""The checks of a server: persistence, memory, replicas, clock, rights."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from mx_rmq.core.errors import (
    MissingRights,
    NewerLayout,
    OutcomeUnknown,
    ScriptFailed,
    ServerUnavailable,
    UnsafeServer,
)
from mx_rmq.doctor.acl import rights
from mx_rmq.doctor.finding import Finding, Severity
from mx_rmq.doctor.slow_scripts import slow_scripts
from mx_rmq.doctor.unlisted_topics import unlisted_topics
from mx_rmq.doctor.vulnerabilities import flaws
from mx_rmq.net.caller import REPLY_WITHIN, Caller
from mx_rmq.net.redis_errors import cannot_use
from mx_rmq.net.url import connect
from mx_rmq.store.keys import Keys
from mx_rmq.store.memory_use import SIGNIFICANT, Memory
from mx_rmq.store.preflight import check_layout, check_server

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_SKEW: Final = 1.0
"""Seconds by which the clocks of client and server may differ without a warning."""

MAX_LAG: Final = 10
MAX_BEHIND: Final = 16 * 1_048_576
"""Seconds since a replica reported, and bytes that it lacks, above which it is behind."""

FILLING: Final = 0.75
FULL: Final = 0.9
"""Shares of maxmemory above which its use is a warning, and is bad."""


@dataclass(frozen=True, slots=True)
class Health:
    """What was found, and whether a store can be opened on such a server."""

    findings: tuple[Finding, ...]
    usable: bool


async def examine(url: str, *, prefix: str, patience: float, load_scripts: bool = True) -> Health:
    """Check every server, including one that would be refused."""
    keys = Keys(prefix)
    servers = await connect(url)
    try:
        reply_within = min(REPLY_WITHIN, max(1.0, patience))
        caller = Caller(
            servers, patience=patience, reply_within=reply_within, load_scripts=load_scripts
        )
        scratch = servers.key_of_each(keys.scratch) or [keys.scratch(0)]
        if len(scratch) == 1:
            found = [await _examine(caller, keys, scratch[0])]
        else:
            found = await asyncio.gather(*(_examine_node(caller, keys, key) for key in scratch))
        layout, known = await _layout(caller, keys)
    except (OutcomeUnknown, ServerUnavailable) as error:
        raise cannot_use(url, error, patience) from error
    finally:
        await servers.close()
    findings = [finding for one in found for finding in one.findings]
    return Health((*findings, layout), known and all(one.usable for one in found))


async def _layout(caller: Caller, keys: Keys) -> tuple[Finding, bool]:
    """Check whether this release knows the layout of the keys."""
    try:
        warnings = await check_layout(caller, keys)
    except NewerLayout as error:
        return Finding(Severity.BAD, str(error)), False
    except (ServerUnavailable, OutcomeUnknown) as error:
        return Finding(Severity.SKIP, f"the layout of the keys is not checked: {error}"), True
    if warnings:
        return Finding(Severity.SKIP, warnings[0]), True
    return Finding(Severity.OK, "this release knows the layout of the keys"), True


async def _examine(caller: Caller, keys: Keys, scratch: str) -> Health:
    """Check the server of a key."""
    findings = [await _clock(caller, scratch)]
    info = await _info(caller, scratch)
    findings += _settings(info, saves=await _saves(caller, scratch)) if info else [_NO_INFO]
    if info:
        findings.append(await _with_holder(caller, keys, scratch, info))
    replica = info.get("role") == "slave"
    features, usable = (None, False) if replica else await _features(caller, keys, scratch)
    if features is not None:
        findings.insert(0, features)
    if usable:
        findings += await rights(caller, scratch)
        findings.append(await slow_scripts(caller, keys, scratch))
        findings.append(await unlisted_topics(caller, keys, scratch))
    return Health(tuple(findings), usable)


async def _examine_node(caller: Caller, keys: Keys, scratch: str) -> Health:
    """Check one of several servers. One that is away does not hide the others."""
    name = caller.server_of(scratch) or ""
    try:
        health = await _examine(caller, keys, scratch)
    except (ServerUnavailable, OutcomeUnknown) as error:
        away = Finding(
            Severity.BAD, f"it does not answer, so its topics wait: {error}", "Check that server"
        )
        health = Health((away,), usable=True)
    findings = [replace(one, what=f"node {name}: {one.what}") for one in health.findings]
    return Health(tuple(findings), health.usable)


_NO_INFO: Final = Finding(
    Severity.WARN,
    "the user may not run INFO, so it is unknown whether the server evicts or persists",
    "Grant +info (ACL SETUSER)",
)


async def _info(caller: Caller, scratch: str) -> dict[str, Any]:
    try:
        info: dict[str, Any] = await caller.command("INFO", at=scratch)
    except ScriptFailed:
        return {}
    return info


async def _saves(caller: Caller, scratch: str) -> bool | None:
    """Return whether the server makes snapshots by itself; None: no right to ask."""
    try:
        found: dict[Any, Any] = await caller.command("CONFIG", "GET", "save", at=scratch)
    except ScriptFailed:
        return None
    return any(found.values())


async def _features(caller: Caller, keys: Keys, scratch: str) -> tuple[Finding | None, bool]:
    try:
        found = await check_server(caller, keys, scratch)
    except MissingRights as error:
        return Finding(Severity.BAD, str(error)), False
    except UnsafeServer:
        return None, False  # one of the settings, and described among them
    what = "the server has every command that the scripts need"
    if not found.hexpire:
        what += ", but no HEXPIRE, which is only a second net"
    return Finding(Severity.OK, what), True


async def _clock(caller: Caller, scratch: str) -> Finding:
    before = time.time()
    server = await caller.time(scratch) / 1000
    after = time.time()
    ahead = max(server - after, before - server, 0.0)
    if ahead <= MAX_SKEW:
        return Finding(Severity.OK, "the clocks of this machine and of the server agree")
    return Finding(
        Severity.WARN,
        f"the clocks of this machine and of the server differ by {ahead:,.1f} s; the queue uses "
        "the server's, but times that you compute here are off",
        "Use NTP on both",
    )


def _settings(info: dict[str, Any], *, saves: bool | None) -> Iterator[Finding]:
    yield Finding(Severity.OK, f"the server is {_version(info)}")
    yield from flaws(_version(info))
    yield _role(info)
    yield from _replicas(info)
    yield _eviction(info)
    evicted = info.get("evicted_keys", 0)
    if evicted:
        yield Finding(
            Severity.BAD,
            f"the server has evicted {evicted:,} keys since it started; messages may be among them",
            "Run mx-rmq audit, and see what its other users do",
        )
    yield _persistence(info, saves=saves)


def _version(info: dict[str, Any]) -> str:
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info.get('redis_version', 'of an unknown version')}"


def _role(info: dict[str, Any]) -> Finding:
    if info.get("role") == "slave":
        return Finding(
            Severity.BAD,
            "the server is a replica, so it refuses writes",
            "Use the primary's address",
        )
    return Finding(Severity.OK, "the server is a primary")


def _replicas(info: dict[str, Any]) -> Iterator[Finding]:
    """Check how far the replicas are behind: that much is lost with the primary, except
    produces that they confirmed."""
    if info.get("role") == "slave":
        return
    found = [info.get(f"slave{number}") for number in range(info.get("connected_slaves", 0))]
    replicas = [one for one in found if isinstance(one, dict)]
    if not replicas:
        yield Finding(Severity.OK, "the server has no replica, so it alone has the messages")
        return
    written = info.get("master_repl_offset", 0)
    for one in replicas:
        name = f"replica {one.get('ip')}:{one.get('port')}"
        behind = max(0, written - one.get("offset", 0))
        late = one.get("lag", 0)
        if one.get("state") != "online":
            yield Finding(
                Severity.WARN,
                f"{name} is not in sync yet ({one.get('state')}): if the primary is lost now, "
                "so are its messages",
                "Wait until it is; if that takes long, look into its log",
            )
        elif late > MAX_LAG or behind > MAX_BEHIND:
            yield Finding(
                Severity.WARN,
                f"{name} is {late} s and {_mib(behind)} behind: that much is lost if it has to "
                "take over",
                "Look at its network and its load; or let produce wait for it (confirm)",
            )
        else:
            yield Finding(Severity.OK, f"{name} is {late} s and {_mib(behind)} behind")


def _eviction(info: dict[str, Any]) -> Finding:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return Finding(Severity.OK, "maxmemory-policy is noeviction")
    return Finding(
        Severity.BAD,
        f"maxmemory-policy is {policy}: when memory runs out, the server deletes whole keys, and "
        "with them every message of a topic",
        "Run CONFIG SET maxmemory-policy noeviction, and set it in the server's configuration",
    )


def _persistence(info: dict[str, Any], *, saves: bool | None) -> Finding:
    if not info.get("aof_enabled"):
        lost = {
            True: "messages since its last snapshot are lost, which is minutes",
            False: "all messages are lost, because it makes no snapshots either",
            None: "messages since its last snapshot are lost, if it makes any",
        }
        return Finding(
            Severity.BAD if saves is False else Severity.WARN,
            f"the server keeps no append-only file: when it stops, {lost[saves]}",
            "Run CONFIG SET appendonly yes, and set it in the configuration",
        )
    for name in ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status"):
        if info.get(name, "ok") != "ok":
            return Finding(
                Severity.BAD,
                f"the server could not write its data to disk ({name} is {info[name]})",
                "Look for a full disk, and into the server's log",
            )
    return Finding(Severity.OK, "the server keeps an append-only file")


def _memory(info: dict[str, Any]) -> Finding:
    used, limit = info.get("used_memory", 0), info.get("maxmemory", 0)
    if not limit:
        return Finding(Severity.OK, f"{_mib(used)} of memory used; maxmemory is not set")
    share = used / limit
    what = f"{_mib(used)} of memory used, {share:.0%} of maxmemory"
    if share < FILLING:
        return Finding(Severity.OK, what)
    return Finding(
        Severity.BAD if share >= FULL else Severity.WARN,
        f"{what}: when it is full, produce is refused",
        "Let workers catch up, discard what is not needed, or raise maxmemory",
    )


async def _with_holder(caller: Caller, keys: Keys, scratch: str, info: dict[str, Any]) -> Finding:
    """Check memory use; if it runs short, name what holds most of it."""
    found = _memory(info)
    if found.severity is Severity.OK:
        return found
    held = await Memory(caller, keys).holders(scratch)
    large = [one for one in held if one.bytes >= SIGNIFICANT * info.get("used_memory", 0)]
    if not large:
        return found
    named = "; ".join(map(str, large[:3]))
    return replace(found, what=f"{found.what}; {named}", cure=large[0].cure)


def _mib(count: int) -> str:
    return f"{count / 1_048_576:,.1f} MiB"
