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
from mx_rmq.core.text import size
from mx_rmq.doctor.acl import rights
from mx_rmq.doctor.finding import Finding, Severity, bad, ok, skip, warn
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

MAX_SKEW: Final = 1.0  # seconds by which the clocks of client and server may differ

MAX_LAG: Final = 10  # seconds since a replica reported, above which it is behind
MAX_BEHIND: Final = 16 * 1_048_576  # and bytes that it lacks

FILLING: Final = 0.75  # share of maxmemory above which its use is a warning
FULL: Final = 0.9  # and above which it is bad


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
    """Check the layout of the keys; return also whether this release can work with it."""
    try:
        warnings = await check_layout(caller, keys)
    except NewerLayout as error:
        return bad(str(error)), False
    except (ServerUnavailable, OutcomeUnknown) as error:
        return skip(f"the layout of the keys is not checked: {error}"), True
    if warnings:
        return skip(warnings[0]), True
    return ok("this release supports the layout of the keys"), True


async def _examine(caller: Caller, keys: Keys, scratch: str) -> Health:
    """Check the server of a key."""
    findings = [await _clock(caller, scratch)]
    info = await _ask(caller, scratch, "INFO")
    if info:
        snapshots = await _ask(caller, scratch, "CONFIG", "GET", "save")
        saves = None if snapshots is None else any(snapshots.values())
        findings += _settings(info, saves=saves)
        findings.append(await _memory(caller, keys, scratch, info))
    else:
        what = "the user may not run INFO, so it is unknown whether the server evicts or persists"
        findings.append(warn(what, "Grant +info (ACL SETUSER)"))
    usable = False
    if not info or not _is_replica(info):
        features, usable = await _features(caller, keys, scratch)
        findings = [*features, *findings]
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
        away = bad(f"it does not answer, so its topics wait: {error}", "Check that server")
        health = Health((away,), usable=True)
    findings = [replace(one, what=f"node {name}: {one.what}") for one in health.findings]
    return Health(tuple(findings), health.usable)


async def _ask(caller: Caller, scratch: str, *command: str) -> dict[str, Any] | None:
    """Run a command on the server of a key; None: no right to."""
    try:
        found: dict[str, Any] = await caller.command(*command, at=scratch)
    except ScriptFailed:
        return None
    return found


async def _features(caller: Caller, keys: Keys, scratch: str) -> tuple[list[Finding], bool]:
    """Check what the scripts need; return also whether the server can be used."""
    try:
        found = await check_server(caller, keys, scratch)
    except MissingRights as error:
        return [bad(str(error))], False
    except UnsafeServer:
        return [], False  # because of a setting, which has its own finding
    what = "the server has every command that the scripts need"
    if not found.hexpire:
        what += ", except HEXPIRE, which is only a safety net"
    return [ok(what)], True


async def _clock(caller: Caller, scratch: str) -> Finding:
    before = time.time()
    server = await caller.time(scratch) / 1000
    after = time.time()
    ahead = max(server - after, before - server, 0.0)
    if ahead <= MAX_SKEW:
        return ok("the clocks of this machine and of the server agree")
    return warn(
        f"the clocks of this machine and of the server differ by {ahead:,.1f} s; the queue uses "
        "the server's, but times that you compute here are off",
        "Use NTP on both",
    )


def _settings(info: dict[str, Any], *, saves: bool | None) -> Iterator[Finding]:
    """Check INFO. `saves`: whether the server makes snapshots; None: unknown."""
    redis = f"Redis {info.get('redis_version', 'of an unknown version')}"
    version = f"Valkey {info['valkey_version']}" if "valkey_version" in info else redis
    yield ok(f"the server is {version}")
    yield from flaws(version)
    if _is_replica(info):
        yield bad("the server is a replica, so it refuses writes", "Use the primary's address")
    else:
        yield ok("the server is a primary")
        yield from _replicas(info)
    yield _eviction(info)
    if evicted := info.get("evicted_keys", 0):
        yield bad(
            f"the server has evicted {evicted:,} keys since it started; messages may be among them",
            "Run mx-rmq audit, and check what else uses this server",
        )
    yield _persistence(info, saves=saves)


def _is_replica(info: dict[str, Any]) -> bool:
    return info.get("role") == "slave"


def _replicas(info: dict[str, Any]) -> Iterator[Finding]:
    """Check how far the replicas are behind. That much is lost with the primary, except messages
    whose produce waited for replicas.
    """
    found = [info.get(f"slave{number}") for number in range(info.get("connected_slaves", 0))]
    replicas = [one for one in found if isinstance(one, dict)]
    if not replicas:
        yield ok("the server has no replica, so it holds the only copy of the messages")
    written = info.get("master_repl_offset", 0)
    for one in replicas:
        name = f"replica {one.get('ip')}:{one.get('port')}"
        missing = max(0, written - one.get("offset", 0))
        lag = one.get("lag", 0)
        behind = f"{name} is {lag} s and {size(missing)} behind"
        if one.get("state") != "online":
            yield warn(
                f"{name} is not in sync yet ({one.get('state')}): if the primary is lost now, "
                "so are its messages",
                "Wait until it is in sync; if that takes long, check its log",
            )
        elif lag > MAX_LAG or missing > MAX_BEHIND:
            yield warn(
                f"{behind}: that much is lost if it has to take over",
                "Check its network and its load; or let produce wait for it (confirm)",
            )
        else:
            yield ok(behind)


def _eviction(info: dict[str, Any]) -> Finding:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return ok("maxmemory-policy is noeviction")
    return bad(
        f"maxmemory-policy is {policy}: when memory runs out, the server deletes whole keys, and "
        "with them every message of a topic",
        "Run CONFIG SET maxmemory-policy noeviction, and set it in the server's configuration",
    )


def _persistence(info: dict[str, Any], *, saves: bool | None) -> Finding:
    if not info.get("aof_enabled"):
        lost = {
            True: "all messages since its last snapshot are lost, usually several minutes of them",
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
            return bad(
                f"the server could not write its data to disk ({name} is {info[name]})",
                "Check whether the disk is full, and read the server's log",
            )
    return ok("the server keeps an append-only file")


async def _memory(caller: Caller, keys: Keys, scratch: str, info: dict[str, Any]) -> Finding:
    """Check memory use; if it runs short, name what holds most of it."""
    used, limit = info.get("used_memory", 0), info.get("maxmemory", 0)
    if not limit:
        return ok(f"{size(used)} of memory used; maxmemory is not set")
    share = used / limit
    what = f"{size(used)} of memory used, {share:.0%} of maxmemory"
    if share < FILLING:
        return ok(what)
    what = f"{what}: when it is full, produce is refused"
    cure = "Let workers catch up, discard what is not needed, or raise maxmemory"
    held = await Memory(caller, keys).holders(scratch)
    if large := [one for one in held if one.bytes >= SIGNIFICANT * used]:
        what, cure = f"{what}; {'; '.join(map(str, large[:3]))}", large[0].cure
    return Finding(Severity.BAD if share >= FULL else Severity.WARN, what, cure)
