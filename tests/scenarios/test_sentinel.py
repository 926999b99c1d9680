"""Behind Sentinel: logins, mistakes in the URL, and Sentinels that are away."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from mx_rmq import InvalidInput, MessageQueue, ServerUnavailable, Worker
from mx_rmq.net.script_loading import load_scripts
from mx_rmq.store.script import sources
from mx_rmq.store.store import Store
from tests.lab.nodes import until_true
from tests.lab.sentinel import Watched

if TYPE_CHECKING:
    from pathlib import Path


async def test_servers_and_sentinels_have_logins_of_their_own(
    short_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Watched(
        short_path, replicas=1, password="data word", sentinel_password="guard"
    ) as watched:
        (short_path / "data").write_text("data word\n")
        (short_path / "guard").write_text("guard\n")
        hosts = ",".join(one.address for one in watched.sentinels)
        plain = f"redis+sentinel://{hosts}/shop"
        done: list[int] = []
        for url in (
            f"{watched.url}?sentinel_password=guard",
            f"{plain}?password_file={short_path}/data&sentinel_password_file={short_path}/guard",
        ):
            mq = MessageQueue(url)

            @mq.handler("t")
            async def handle(number: int) -> None:
                done.append(number)

            async with mq:
                await mq.produce("t", 1)
                await Worker(mq).drain()
            loaded = await load_scripts(url, sources(), patience=5)
            assert [(one.role, one.error) for one in loaded] == [("primary", ""), ("replica", "")]
        assert done == [1, 1]
        for url, what in (
            (plain, "(?i)auth"),
            (f"{watched.url}?sentinel_password=wrong-guard", "(?i)password|auth"),
            (f"redis+sentinel://:wrong-data@{hosts}/shop?sentinel_password=guard", "password"),
        ):
            began = time.monotonic()
            with pytest.raises(ServerUnavailable, match=what) as caught:
                await Store.open(url, patience=20)
            assert time.monotonic() - began < 5, "no repetition cures it"
            assert len(str(caught.value)) < 1000
            for secret in ("guard", "data word", "data%20word", "wrong-data"):
                assert secret not in str(caught.value).replace("wrong-guard", "")
                assert secret not in caplog.text
        with pytest.raises(ServerUnavailable, match="no Sentinel knows a primary named 'other'"):
            await Store.open(
                f"{watched.url.replace('/shop', '/other')}?sentinel_password=guard", patience=0.2
            )


async def test_sentinels_that_are_away_do_not_matter_while_the_primary_is_there(
    short_path: Path,
) -> None:
    async with Watched(short_path, replicas=1) as watched:
        mq = MessageQueue(watched.url, patience=5)
        done: list[int] = []

        @mq.handler("t")
        async def handle(number: int) -> None:
            done.append(number)

        async with mq, Worker(mq):
            await mq.produce("t", 0)
            watched.sentinels[0].freeze()
            for sentinel in watched.sentinels[1:]:
                sentinel.kill()
            for number in range(1, 4):
                await mq.produce("t", number)
            # They take more connections than are open.
            await asyncio.gather(*(mq.admin.stats("t") for _ in range(10)))
            await until_true(lambda: done == [0, 1, 2, 3], "all are handled")
            watched.sentinels[0].thaw()


@pytest.mark.parametrize("option", ["sentinel_pasword=hunter2", "sentinel_ssl_ca_certs=/hunter2"])
def test_an_option_that_is_none_is_refused_and_its_value_not_shown(option: str) -> None:
    with pytest.raises(InvalidInput, match="is not an option of a Sentinel URL") as caught:
        MessageQueue(f"redis+sentinel://h/shop?{option}")
    assert "hunter2" not in str(caught.value)
