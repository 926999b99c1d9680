"""The formula of a cost, the spread of partitions, and what is estimated from them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import pytest
from redis.crc import key_slot

from bench.capacity.model import PHASES, Cell, Costs, Line, Model, Point, Share, Spent, Weight, fit
from bench.capacity.plan import MAXCLIENTS, Load, Plan, shipped
from bench.capacity.spread import busiest, counts, shard_of, slot_of, usual_busiest
from mx_rmq.core.partition import MAX_PARTITIONS, partitions

PAYLOADS = (100, 1_000, 10_000, 100_000)
BATCHES = (1, 10, 100, 500)
LINES = {
    "produce": Line(3.0, 90.0, 0.002),
    "dispatch": Line(4.0, 110.0, 0.0015),
    "complete": Line(3.0, 70.0, 0.0),
}
PRODUCER, WORKER = Line(9.0, 100.0, 0.006), Line(12.0, 280.0, 0.0015)


def made_up(noise: float = 0.0, **changes: float) -> Costs:
    """Return costs that follow the formula, every other one a bit more, the rest a bit less."""

    def at(line: Line, payload: int, batch: float, number: int) -> float:
        return line.at(payload, batch) * (1 + (-noise if number % 2 else noise))

    grid = list(enumerate(product(PAYLOADS, BATCHES)))
    cells = [
        Cell(
            payload,
            batch,
            *(Spent(*[at(LINES[phase], payload, batch, number)] * 2) for phase in PHASES),
        )
        for number, (payload, batch) in grid
    ]
    producer, worker = (
        [
            Share(payload, batch, at(line, payload, batch, number))
            for number, (payload, batch) in grid
        ]
        for line in (PRODUCER, WORKER)
    )
    return Costs(
        date="2026-11-16",
        server="Valkey 9.1.2",
        python="3.11.7",
        machine="2 cores, x86_64",
        rounds=5,
        cells=cells,
        producer=producer,
        worker=worker,
        memory=[Weight(payload, 180 + payload) for payload in PAYLOADS],
        **changes,
    )


MODEL = Model(made_up())


# the formula


def test_a_fit_finds_the_formula_that_made_the_values() -> None:
    for phase, line in LINES.items():
        assert MODEL.cpu[phase] == pytest.approx(line, abs=1e-6)
    assert MODEL.producer == pytest.approx(PRODUCER, abs=1e-6)
    assert MODEL.deviation() == pytest.approx(0, abs=1e-6)


def test_noise_moves_a_fit_by_no_more_than_itself() -> None:
    model = Model(made_up(noise=0.1))
    assert model.deviation() < 0.2
    for phase, line in LINES.items():
        assert model.cpu[phase].at(1_000, 100) == pytest.approx(line.at(1_000, 100), rel=0.1)


def test_no_part_of_a_cost_is_below_zero() -> None:
    falling = [
        Point(payload, batch, 50 - payload / 4_000) for payload, batch in product(PAYLOADS, BATCHES)
    ]
    assert min(fit(falling)) >= 0


def test_memory_is_read_between_the_sizes_that_were_weighed_and_beyond_them() -> None:
    for payload in (20, 100, 550, 1_000, 50_000, 100_000, 1_000_000):
        assert MODEL.memory(payload) == pytest.approx(180 + payload)


def test_what_is_shipped_is_reproduced() -> None:
    model = Model(shipped())
    assert model.deviation() < 0.3
    assert all(line.message > 0 and line.call > 0 for line in model.cpu.values())
    for weight in model.costs.memory:
        assert model.memory(weight.payload) == pytest.approx(weight.bytes)


# the spread


@pytest.mark.parametrize("name", ["a", "order.created", "order.created/7", "ü" * 30])
def test_a_slot_is_the_servers_own(name: str) -> None:
    assert slot_of(name) == key_slot(f"mx-rmq:{{{name}}}:pending".encode())


def test_shards_have_slots_in_a_row_and_all_of_them() -> None:
    names = [f"n{number}" for number in range(2_000)]
    for shards in (1, 3, 10, 100):
        placed = sorted((slot_of(name), shard_of(name, shards)) for name in names)
        assert all(one[1] <= other[1] for one, other in pairwise(placed))
        assert {shard for _, shard in placed} == set(range(shards))


def test_a_small_spread_is_exact() -> None:
    names = partitions("order.created", 12)
    by_hand = [
        sum(key_slot(name.encode()) * 3 // 16_384 == one for name in names) for one in range(3)
    ]
    assert counts(names, 3) == by_hand
    assert busiest(["order.created"], 12, 3) == max(by_hand)
    assert busiest(["order.created"], 12, 1) == 12
    assert busiest(["order.created"], 1, 100) == 1


def test_twelve_partitions_on_ten_shards_leave_three_on_one() -> None:
    assert usual_busiest(1, 12, 10) == 3


def test_more_partitions_are_spread_more_evenly() -> None:
    shares = [usual_busiest(1, parts, 10) / parts * 10 for parts in (10, 40, 160, 640)]
    assert shares == sorted(shares, reverse=True)
    assert 1 < shares[-1] < 1.4


# the plan


def plan(**load: object) -> Plan:
    return Plan.of(Load(**load), MODEL)  # type: ignore[arg-type]


def test_one_shard_has_the_speed_of_its_core() -> None:
    found = plan(payload=1_000, batch=100)
    cost = 3 + 4 + 3 + (90 + 110 + 70) / 100 + 3.5
    assert found.server_us == pytest.approx(cost)
    assert found.total == found.per_shard == pytest.approx(0.7e6 / cost)
    assert found.memory == found.memory_busiest == pytest.approx(1_180e6)
    assert (found.partitions, found.busiest) == (1, 1)


def test_more_shards_are_faster_and_larger_messages_slower() -> None:
    totals = [plan(shards=shards).total for shards in (1, 3, 10, 100)]
    assert totals == sorted(totals)
    slower = [plan(payload=payload).total for payload in PAYLOADS]
    assert slower == sorted(slower, reverse=True)
    batches = [plan(batch=batch).total for batch in BATCHES]
    assert batches == sorted(batches)
    assert plan(produce_batch=1).total < plan().total


def test_one_topic_without_partitions_has_one_shard_however_many_there_are() -> None:
    assert plan(shards=100, partitions=1).total == plan().total


def test_the_busiest_shard_sets_the_speed_of_all() -> None:
    found = plan(shards=10, names=("order.created",), partitions=12)
    most = busiest(["order.created"], 12, 10)
    assert found.total == pytest.approx(found.per_shard * 12 / most)
    assert found.memory_busiest == pytest.approx(found.memory * most / 12)


def test_a_cluster_costs_what_was_measured_for_it_and_never_less_than_one_server() -> None:
    dearer, cheaper = Model(made_up(cluster=1.1, replicas=1.3)), Model(made_up(cluster=0.9))
    one, three = Load(), Load(shards=3)
    alone = Plan.of(one, MODEL).server_us
    assert Plan.of(one, dearer).server_us == alone
    assert Plan.of(three, dearer).server_us == pytest.approx(alone * 1.1)
    assert Plan.of(replace(three, replicas=True), dearer).server_us == pytest.approx(alone * 1.3)
    assert Plan.of(three, cheaper).server_us == alone


def test_a_call_carries_no_more_than_it_may() -> None:
    assert plan(payload=100_000, produce_batch=500) == replace(
        plan(payload=100_000, produce_batch=10), load=Load(payload=100_000, produce_batch=500)
    )


def test_handlers_that_compute_need_processes() -> None:
    assert plan().workers == 2
    busy = plan(handler=1_000.0)
    assert busy.workers == pytest.approx(busy.total * 1e-3 / 0.7, rel=0.05)


def test_an_idle_worker_looks_around_per_partition_in_a_cluster_and_once_on_one_server() -> None:
    assert plan(partitions=24).idle_commands == pytest.approx(0.3 + 2 / 15)
    assert plan(shards=3, partitions=24).idle_commands == pytest.approx(24 * 0.1 + 0.2 + 2 / 15)


def test_what_is_over_its_bound_is_said() -> None:
    assert not any(bound.over for bound in plan(shards=3).bounds)
    over = {bound.what: bound for bound in plan(shards=100, handler=1_000.0).bounds if bound.over}
    assert over["connections of a node"].most == MAXCLIENTS
    assert "connections of a worker" in over
    (parts,) = [one for one in plan(shards=500).bounds if one.what.startswith("partitions")]
    assert (parts.used, parts.most, parts.over) == (MAX_PARTITIONS, MAX_PARTITIONS, False)
