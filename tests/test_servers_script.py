"""Which servers the tests run on, and where the others come from."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.lab import servers
from tests.lab.servers import ROOT, USUAL, Kind, binary, chosen

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = ROOT / "scripts" / "servers"


FETCHED = sorted(set(Kind) - {Kind.VALKEY_9_1, Kind.REDIS_7_0})


def test_the_script_fetches_every_kind_that_no_package_here_has() -> None:
    (names,) = re.findall(r'^NAMES="(.*)"$', SCRIPT.read_text(), re.MULTILINE)
    assert sorted(names.split()) == FETCHED


def test_the_script_refuses_a_name_that_it_does_not_know() -> None:
    ended = subprocess.run(
        ["sh", SCRIPT, "redis-1.0"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert "there is no redis-1.0; there are redis-6.2 " in ended.stderr


def test_a_test_runs_on_the_kinds_it_names_unless_others_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MX_RMQ_SERVERS", raising=False)
    assert chosen(*USUAL) == list(USUAL)
    monkeypatch.setenv("MX_RMQ_SERVERS", "redis-8.0,valkey-8.1")
    assert chosen(*USUAL) == [Kind.REDIS_8_0, Kind.VALKEY_8_1]
    monkeypatch.setenv("MX_RMQ_SERVERS", "all")
    assert chosen(*USUAL) == list(Kind)
    monkeypatch.setenv("MX_RMQ_SERVERS", "redis-1.0")
    with pytest.raises(ValueError, match=r"redis-1\.0"):
        chosen(*USUAL)


@pytest.mark.parametrize("kind", FETCHED)
def test_a_kind_that_was_not_fetched_is_an_error(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "ROOT", tmp_path)
    with pytest.raises(RuntimeError, match=rf"{kind} is not covered: .*/{kind}/server is missing"):
        binary(kind)
