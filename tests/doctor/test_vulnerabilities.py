"""Which servers are known to have holes."""

from __future__ import annotations

import re

import pytest

from mx_rmq.doctor.finding import Severity
from mx_rmq.doctor.vulnerabilities import FIXED, NEVER, flaws

LUA, BLOCKED = "CVE-2025-49844", "CVE-2026-23479"


@pytest.mark.parametrize(
    ("server", "holes", "cure"),
    [
        ("Redis 6.2.14", {LUA}, "Use Redis 6.2.20 or newer"),
        ("Redis 7.0.15", {LUA}, "Use a newer version: no release of Redis 7.0 is fixed"),
        ("Redis 7.2.4", {LUA, BLOCKED}, "Use Redis 7.2.14 or newer"),
        ("Redis 7.2.11", {BLOCKED}, "Use Redis 7.2.14 or newer"),
        ("Redis 7.4.5", {LUA, BLOCKED}, "Use Redis 7.4.9 or newer"),
        ("Redis 8.0.3", {LUA}, "Use Redis 8.0.4 or newer"),
        ("Redis 8.2.1", {LUA, BLOCKED}, "Use Redis 8.2.6 or newer"),
        ("Redis 8.4.2", {BLOCKED}, "Use Redis 8.4.3 or newer"),
        ("Valkey 7.2.4", {LUA}, "Use Valkey 7.2.11 or newer"),
        ("Valkey 8.0.5", {LUA}, "Use Valkey 8.0.6 or newer"),
        ("Valkey 8.1.3", {LUA, BLOCKED}, "Use Valkey 8.1.7 or newer"),
        ("Valkey 8.1.4", {BLOCKED}, "Use Valkey 8.1.7 or newer"),
        ("Valkey 9.0.3-rc1", {BLOCKED}, "Use Valkey 9.0.4 or newer"),
    ],
)
def test_an_old_release_is_warned_of(server: str, holes: set[str], cure: str) -> None:
    (found,) = flaws(server)
    assert found.severity is Severity.WARN
    assert found.what.startswith(f"{server} has vulnerabilities")
    assert "unless your distribution has backported the fix" in found.what
    assert {LUA, BLOCKED} & {*re.findall(r"CVE-\d+-\d+", found.what)} == holes
    assert found.cure == f"{cure}, and restrict who can reach the port"


@pytest.mark.parametrize(
    "server",
    [
        *("Redis 6.2.20", "Redis 7.2.14", "Redis 8.0.10", "Redis 8.6.3", "Redis 9.0.0"),
        *("Valkey 8.0.6", "Valkey 8.1.10", "Valkey 9.1.0", "Valkey 10.0.0"),
        *("Redis of an unknown version", "Redis 255.255.255", "Dragonfly 1.2.3", ""),
    ],
)
def test_a_fixed_or_unknown_one_is_not(server: str) -> None:
    assert [*flaws(server)] == []


def test_every_release_that_is_named_as_fixed_is_fixed() -> None:
    for version, fixed in FIXED.items():
        needed = max(fixed)
        if needed != NEVER:
            assert [*flaws(f"{version}.{needed}")] == []
            assert [*flaws(f"{version}.{needed - 1}")]
