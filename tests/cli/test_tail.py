"""tail, and the life of a message, as a user sees them."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING

import pytest

from tests.cli.calls import HOSTILE, harmless, run
from tests.lab.messages import TOPIC, draft, drafts, leased, pending
from tests.lab.servers import Kind

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq.store.store import Store
    from tests.lab.servers import Server

pytestmark = pytest.mark.parametrize("kind", [Kind.VALKEY_9_1], indirect=True)


async def test_tail_tells_what_has_happened_a_line_each(store: Store, server: Server) -> None:
    await store.produce_normal_message(TOPIC, drafts(5))
    await store.produce_normal_message("other", [draft(id="own")])
    (one,) = await leased(store)
    await store.complete_message(TOPIC, "w1", [one])
    told = await run(server, "tail", TOPIC, "--since", "1970-01-01", "--limit", "4")
    assert told.exit_code == 0
    lines = [line.split()[2:] for line in told.stdout.splitlines()]
    assert [line[0] for line in lines] == ["produced", "produced", "dispatched", "completed"]
    assert lines[0][-3:] == ["and", "2", "others"]
    assert lines[-1][-2:] == ["by", "w1"]


async def test_tail_as_json_is_a_document_a_line(store: Store, server: Server) -> None:
    await store.produce_normal_message(TOPIC, [draft(id="own")])
    told = await run(server, "tail", "--since", "1970-01-01", "--limit", "1", "--json")
    happening = json.loads(told.stdout)
    assert (happening["topic"], happening["what"]) == (TOPIC, "produced")
    assert (happening["ids"], happening["by"], happening["about"]) == (["own"], "", "")


async def test_tail_begins_a_span_before_the_servers_now(
    store: Store, raw: Redis, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, _ = await raw.time()
    await store.produce_normal_message(TOPIC, [draft(id="own")])
    key = store.keys.of(TOPIC).history
    await raw.delete(key)
    for ago in (7300, 7100, 60):
        entry = {"what": "died", "by": "", "ids": f"m-{ago}", "about": ""}
        await raw.xadd(key, entry, id=f"{seconds - ago}000-0")  # type: ignore[arg-type]
    monkeypatch.setattr(time, "time", lambda: 0.0)  # whatever this machine's clock says
    told = await run(server, "tail", "--since", "2h", "--limit", "2")
    assert [line.split()[-1] for line in told.stdout.splitlines()] == ["m-7100", "m-60"]
    told = await run(server, "tail", "--since", "1000d", "--limit", "1")
    assert told.stdout.split()[-1] == "m-7300"
    for far in ("9" * 400 + "d", "100"):
        refused = await run(server, "tail", "--since", far, "--limit", "1")
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert refused.stderr.startswith(f"Error: --since '{far[:70]}")


async def test_an_unknown_topic_is_refused(store: Store, server: Server) -> None:
    told = await run(server, "tail", "unknown", "--limit", "1")
    assert told.exit_code == 2
    assert "no topic 'unknown'" in told.stderr


@pytest.mark.corrupts
async def test_a_foreign_hand_cannot_harm_the_terminal(
    store: Store, raw: Redis, server: Server
) -> None:
    await store.produce_normal_message(TOPIC, [draft(id="own")])
    entry = {"what": "died", "by": HOSTILE, "ids": HOSTILE, "about": HOSTILE}
    await raw.xadd(store.keys.of(TOPIC).history, entry)  # type: ignore[arg-type]
    told = await run(server, "tail", "--since", "1970-01-01", "--limit", "2")
    assert harmless(told.stdout)


async def test_show_tells_the_life_of_a_message_also_when_it_is_gone(
    store: Store, server: Server
) -> None:
    (one,) = await leased(store)
    told = await run(server, "show", one.id)
    assert [line.split()[2] for line in told.stdout.partition("history:")[2].splitlines()[1:3]] == [
        "produced",
        "dispatched",
    ]
    await store.complete_message(TOPIC, "w1", [one])
    told = await run(server, "show", one.id)
    assert told.exit_code == 0
    assert "state:       completed\n" in told.stdout
    document = json.loads((await run(server, "show", TOPIC, one.id, "--json")).stdout)
    assert document["state"] is None
    assert [one["what"] for one in document["history"]] == ["produced", "dispatched", "completed"]
    assert document["history_begins"] == document["history"][0]["at"]
    assert (await run(server, "show", "unknown")).exit_code == 1


async def test_show_says_how_far_back_the_history_reaches(
    store: Store, raw: Redis, server: Server
) -> None:
    (old,) = await pending(store)
    key = store.keys.of(TOPIC).history
    await raw.delete(key)
    told = await run(server, "show", old)
    assert "history:\n  none: the history is empty or turned off\n" in told.stdout
    (new,) = await pending(store)
    told = await run(server, "show", new)
    assert re.search(r"the history reaches back to 20\S+ \S+Z \(\d+\.\d s\)\n", told.stdout)
    await raw.delete(key)
    await raw.xadd(key, {"what": "due", "ids": "x"}, id="9000000000000-1")
    told = await run(server, "show", old)
    assert "  none: the message is older than the history\n" in told.stdout
