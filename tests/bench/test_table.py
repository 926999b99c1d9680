"""The tables and the picture, from results made up here."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from bench.compare import medians, takes_part
from bench.payload import PAYLOAD_BYTES
from bench.picture import picture
from bench.systems import SYSTEMS, chosen
from bench.table import markdown, tables, text


def _system(name: str, rate: float, *, is_async: bool = True, back: int = 50) -> dict[str, Any]:
    return {
        "name": name,
        "promise": "something",
        "about": {
            "runtime": "Python 3.11",
            "versions": {"redis": "8.1.0"},
            "concurrency": 100,
            "settings": "defaults",
            "bulk": "one by one",
            "results": "a call that waits",
            "is_async": is_async,
            "has_delay": True,
        },
        "drain": {
            "messages": 1000,
            "rate": rate,
            "bulk_rate": rate / 2,
            "worker_cpu": 14.2,
            "server_cpu": 9.6,
            "reads": 0.02,
        },
        "round_trip": {"messages": 1000, "rate": rate / 100, "p50": 64_000 / rate, "p99": 123.4},
        "round_trip_callers": {"messages": 1000, "rate": rate / 8, "p50": 12.0, "p99": 34.0},
        "crash": {
            "messages": 500,
            "held": 50,
            "back": back,
            "completed": 450 + back,
            "last_back": 30.4 if back else 0,
            "waited": 120,
        },
    }


RESULTS: dict[str, Any] = {
    "date": "2026-11-16",
    "server": "Redis 7.0.15",
    "machine": "2 cores, x86_64",
    "payload_bytes": 200,
    "rounds": 3,
    "scale": 1.0,
    "load": [0.5, 1.5],
    "calibration_ms": [43.1, 44.0],
    "minutes": 24.5,
    "systems": {
        "ours": _system("mx-rmq", 64_000),
        "ours-def": _system("mx-rmq, def handlers", 8_000, is_async=False),
        "repid": _system("repid & co", 6_400),
        "huey": _system("Huey", 2_000, is_async=False, back=0),
    },
}


def _row(title: str, name: str) -> list[str]:
    table = next(table for table in tables(RESULTS) if table.title.startswith(title))
    return next(list(row) for row in table.rows if row[0] == name)


def test_a_peers_rate_says_how_many_times_as_fast_we_were() -> None:
    assert _row("Messages", "mx-rmq")[4] == "64,000"
    assert _row("Messages", "repid & co")[3:5] == ["3,200 (10×)", "6,400 (10×)"]


def test_sync_handlers_are_compared_with_ours_in_threads() -> None:
    assert _row("Sync", "Huey")[1] == "2,000 (4.0×)"


def test_what_was_not_measured_is_a_dash() -> None:
    assert _row("Messages", "repid & co")[1] == "–"


def test_a_round_trip_says_how_many_times_as_fast_we_were() -> None:
    assert _row("Round", "mx-rmq")[1:4] == ["1.00", "123", "8,000"]
    assert _row("Round", "Huey")[1:4] == ["32 (32×)", "123", "250 (32×)"]


def test_the_crash_table_says_what_came_back_and_when() -> None:
    assert _row("A worker", "mx-rmq")[1:5] == ["500 of 500", "50", "50", "30 s"]
    assert _row("A worker", "Huey")[1:5] == ["450 of 500", "50", "0", "–"]


def test_a_table_without_rows_is_left_out() -> None:
    assert not any(table.title == "Milliseconds" for table in tables(RESULTS))


def test_the_report_tells_conditions_and_settings() -> None:
    for report in (markdown(RESULTS), text(RESULTS)):
        for fact in (
            "Redis 7.0.15",
            "2 cores",
            "200 bytes",
            "24.5 minutes",
            "**Huey**: defaults",
            "that waits",
        ):
            assert fact in report


def test_every_row_of_the_markdown_has_as_many_cells_as_its_head() -> None:
    for table in tables(RESULTS):
        lines = [line for line in table.markdown().splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) == 1


def test_the_picture_is_svg_with_a_bar_a_queue_the_fastest_first() -> None:
    drawn = ElementTree.fromstring(picture(RESULTS))
    space = "{http://www.w3.org/2000/svg}"
    bars = [float(bar.attrib["width"]) for bar in drawn.iter(f"{space}rect")]
    words = [text.text for text in drawn.iter(f"{space}text")]
    assert bars == sorted(bars, reverse=True)
    assert len(bars) == 3
    assert words.index("mx-rmq") < words.index("repid & co") < words.index("Huey")
    assert "back after 30 s" in words
    assert "50 of 50 not back in 120 s" in words


def test_the_picture_is_made_for_light_and_dark_and_needs_nothing_else() -> None:
    drawn = picture(RESULTS)
    assert "prefers-color-scheme: dark" in drawn
    assert "href" not in drawn
    assert "url(" not in drawn


def test_medians_keep_all_rates() -> None:
    found = medians(
        [{"rate": 3.0, "p50": 1.0}, {"rate": 1.0, "p50": 2.0}, {"rate": 2.0, "p50": 9.0}]
    )
    assert found == {"rate": 2.0, "p50": 2.0, "rates": [3, 1, 2]}


def test_a_workload_is_only_for_those_who_can() -> None:
    ours, threads, *_ = SYSTEMS
    plain = {"is_async": False, "has_delay": False, "results": ""}
    assert takes_part("drain", ours, plain)
    assert takes_part("drain", threads, plain)
    assert not takes_part("latency", threads, plain)
    assert not takes_part("callers", ours, plain)
    assert not takes_part("delayed", ours, plain)
    assert not takes_part("round_trip", ours, plain)
    assert takes_part("round_trip_callers", ours, {**plain, "results": "a call"})
    assert not takes_part("round_trip", threads, {**plain, "results": "a call"})


def test_only_takes_keys_in_the_order_given() -> None:
    assert [system.key for system in chosen("repid,ours")] == ["repid", "ours"]
    assert len(chosen(None)) == len(SYSTEMS)


def test_the_payload_has_200_bytes() -> None:
    assert PAYLOAD_BYTES == 200
