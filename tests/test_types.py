"""What users write, as mypy and pyright see it: right code passes, wrong code does not.

Each case is a pair of snippets that differ in one fault, so nothing else rejects the wrong one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

import mx_rmq

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SOURCE: Final = Path(mx_rmq.__file__).parent.parent

SHOP: Final = """
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, assert_type

from collections.abc import Sequence

from mx_rmq import Batch, ByError, Delays, Delivery, Exponential, Limit, MessageQueue
from mx_rmq import Priority, Rate, Router, Snooze, Status, Topic


@dataclass
class Order:
    id: int


@dataclass
class Express(Order):
    hours: int


@dataclass
class Receipt:
    number: str


@dataclass
class Signed(Receipt):
    by: str


mq = MessageQueue("redis://localhost")
router = Router()
orders = mq.topic("order", Order, result=Receipt)
parcels = router.topic("parcel", Order, result=Receipt)
plain = mq.topic("plain", Order)
express = mq.topic("express", Express)


async def use() -> None:
"""

RIGHT: Final = """
assert_type(orders, Topic[Order, Receipt])
assert_type(parcels, Topic[Order, Receipt])
assert_type(plain, Topic[Order, Any])
assert_type(mq.topic("a", list[int], result=dict[str, int]), Topic[list[int], dict[str, int]])
sizes: Topic[int | None, Any] = mq.topic("a", int | None)
levels: Topic[Literal["a"], int] = mq.topic("a", Literal["a"], result=int)
mq.include(router)

@plain.handler()
def ship1(order: Order) -> int: ...

@plain.handler()
async def ship2(order: object) -> None: ...

@express.handler()
async def ship3(order: Order) -> None: ...

@orders.handler()
async def ship4(order: Order, delivery: Delivery, db: Annotated[int, 5]) -> Signed: ...

@orders.handler()
def ship5(delivery: Delivery, order: Order) -> Receipt: ...

@orders.handler()
async def ship6(order: Order, note: str) -> Receipt: ...

@orders.handler(batch=5, linger=0.5, result_ttl=60)
async def ship7(orders: list[Order], batch: Batch) -> list[Receipt]: ...

@orders.handler(batch=5)
def ship8(batch: Batch, orders: Sequence[Order], db: Annotated[int, 5]) -> list[Signed]: ...

@plain.handler(batch=5)
async def ship9(orders: list[Order]) -> None: ...

@mq.handler("a", batch=5, linger=0.5)
async def ship10(orders: list[Order], batch: Batch) -> None: batch.fail(0, "no")

assert_type(await orders.result("1", timeout=5), Receipt)
assert_type(orders.sync.result("1"), Receipt)
assert_type(await orders.status("1"), Status | None)
assert_type([one async for one in orders.watch("1")], list[Status])
assert_type(list(orders.sync.watch("1")), list[Status])
assert_type(await ship6(Order(1), note=""), Receipt)
await plain.produce(Express(1, 2))
await mq.produce("a", 1, retry=5)
await mq.produce("a", 1, retry=[1, 2.5])
await mq.produce("a", 1, retry=(1, 2.5))
await mq.produce("a", 1, retry={OSError: [1, 2], ValueError: None})
await mq.produce("a", 1, retry={"OSError": 1})
await mq.produce("a", 1, retry=Delays((1, 2)))
await mq.produce("a", 1, retry=Exponential(cap=60))
await mq.produce("a", 1, retry=ByError({OSError: 1}))
await mq.produce("a", 1, at=datetime.now(UTC), ttl=5, headers={"a": "b"}, key="k", id="i")
await mq.produce("a", 1, priority=Priority.HIGH, max_attempts=2, confirm=None, retry=None)
mq.handler("a", per_key=Limit(running=1, overtake=True))
assert_type(Limit(rate="5/s").rate, Rate | None)
Snooze(5, key=True)
"""
"""What both must accept, besides the right half of each case."""


class Case(NamedTuple):
    """Two snippets that differ in one fault."""

    right: str
    wrong: str


def cases() -> Iterator[Case]:
    for topic in ("orders", "parcels"):  # of a queue, of a router
        yield from producing(f"await {topic}.produce(", "Order(1)", "Receipt('')")
        yield from producing(f"{topic}.sync.produce(", "Order(1)", "Receipt('')")
        yield from producing(f"await {topic}.produce_many(", "[Order(1)]", "[Receipt('')]")
        yield from producing(f"{topic}.sync.produce_many(", "[Order(1)]", "[Receipt('')]")
        for result in (f"await {topic}.result('1')", f"{topic}.sync.result('1', timeout=5)"):
            yield Case(f"receipt: Receipt = {result}", f"receipt: Order = {result}")
        yield from handling(topic)
        yield from handling_batches(topic)
    for owner in ("mq", "router"):
        yield from declaring(f'{owner}.handler("a", ', "def ship(order: Order) -> None: ...")
        yield from declaring(f'{owner}.cron("* * * * *", ', "def tick() -> None: ...")
        cron = f'@{owner}.cron("* * * * *", missed="%s")\ndef tick() -> None: ...'
        yield Case(cron % "once", cron % "twice")
        yield Case(
            f'{owner}.topic("a", Order, result=int)', f'{owner}.topic("a", Order, reslt=int)'
        )
    yield from producing('await mq.produce("a", ', "1", "")
    yield from producing('mq.sync.produce("a", ', "1", "")
    yield from producing('await mq.produce_many("a", ', "[1]", "1")
    yield from producing('mq.sync.produce_many("a", ', "[1]", "1")


def producing(start: str, payload: str, wrong: str) -> Iterator[Case]:
    yield Case(f"{start}{payload})", f"{start}{wrong})")
    start = f"{start}{payload}, "
    yield Case(f"{start}delay=5)", f"{start}dealy=5)")
    yield Case(f"{start}delay=5)", f"{start}delay='5')")
    yield Case(f"{start}retry=[5])", f"{start}retry=['5'])")
    yield Case(f"{start}priority='high')", f"{start}priority='hihg')")
    yield Case(f"{start}confirm='fsynced')", f"{start}confirm='synced')")
    yield Case(f"{start}cost=5)", f"{start}cost='5')")
    name, value = ("ids", "['5']") if "many(" in start else ("id", "'5'")
    yield Case(f"{start}{name}={value})", f"{start}{name}=5)")
    name, value = ("keys", "['5', None]") if "many(" in start else ("key", "'5'")
    yield Case(f"{start}{name}={value})", f"{start}{name}=5)")


def declaring(start: str, function: str) -> Iterator[Case]:
    for right, wrong in (
        ("timeout=5", "tiemout=5"),
        ("timeout=5", "timeout='5'"),
        ("retry={OSError: 5}", "retry={OSError: '5'}"),
        ("max_attempts=5", "max_attempts=None"),
        ("limit=Limit(running=5, rate='50/s')", "limit='50/s'"),
        ("limit=Limit(rate=Rate(100, 60))", "limit=Limit(rate=50)"),
    ):
        yield Case(f"@{start}{right})\n{function}", f"@{start}{wrong})\n{function}")


def handling(topic: str) -> Iterator[Case]:
    yield from declaring(f"{topic}.handler(", "def ship(order: Order) -> Receipt: ...")
    for how in ("def", "async def"):
        ship = f"@{topic}.handler()\n{how} ship(%s) -> %s: ..."
        right = ship % ("order: Order", "Receipt")
        for wrong in ("order: Express", "order: Receipt", "", "delivery: Delivery"):
            yield Case(right, ship % (wrong, "Receipt"))
        for wrong in ("Order", "None", "Receipt | None", "list[Receipt]"):
            yield Case(right, ship % ("order: Order", wrong))
        right = ship % ("delivery: Delivery, order: Order", "Receipt")
        yield Case(right, ship % ("delivery: Delivery, order: Receipt", "Receipt"))
        yield Case(right, ship % ("delivery: Delivery, order: Order", "Order"))


def handling_batches(topic: str) -> Iterator[Case]:
    for how in ("def", "async def"):
        ship = f"@{topic}.handler(batch=5)\n{how} ship(%s) -> %s: ..."
        right = ship % ("orders: list[Order]", "list[Receipt]")
        for wrong in ("order: Order", "orders: list[Receipt]"):
            yield Case(right, ship % (wrong, "list[Receipt]"))
        for wrong in ("Receipt", "list[Order]"):
            yield Case(right, ship % ("orders: list[Order]", wrong))
        right = f"@{topic}.handler()\n{how} ship(order: Order) -> Receipt: ..."
        yield Case(right, right.replace("()", "(linger=5)", 1))
        yield Case(right, right.replace("()", "(batch='5')", 1))


Errors = dict[str, list[str]]  # name of a file -> its errors


def mypy(directory: Path) -> Errors:
    options = ("--strict", "--config-file=", "--cache-dir=cache", "--follow-imports=silent")
    output = _check(directory, "mypy", *options, "--disable-error-code=empty-body", "-O=json", ".")
    return _by_file(map(json.loads, output.splitlines()))


def pyright(directory: Path) -> Errors:
    (directory / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(SOURCE)]}))
    output = _check(directory, "pyright", "--outputjson", "--pythonpath", sys.executable)
    return _by_file(json.loads(output)["generalDiagnostics"])


def _check(directory: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=directory,
        env={**os.environ, "MYPYPATH": str(SOURCE)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def _by_file(found: Iterator[dict[str, str]]) -> Errors:
    errors: Errors = {}
    for one in found:
        if one["severity"] == "error":
            errors.setdefault(Path(one["file"]).stem, []).append(one["message"])
    return errors


@pytest.mark.timeout(300)
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_a_checker_accepts_what_is_right_and_rejects_what_is_wrong(
    checker: Callable[[Path], Errors], tmp_path: Path
) -> None:
    pairs = list(cases())
    right = dict(enumerate([RIGHT, *(case.right for case in pairs)]))
    wrong = dict(enumerate(case.wrong for case in pairs))
    for kind, snippets in (("right", right), ("wrong", wrong)):
        for number, snippet in snippets.items():
            body = "".join(f"    {line}\n" for line in snippet.splitlines())
            (tmp_path / f"{kind}_{number}.py").write_text(SHOP + body)
    errors = checker(tmp_path)
    rejected = {right[n]: errors[f"right_{n}"] for n in right if f"right_{n}" in errors}
    accepted = [wrong[n] for n in wrong if f"wrong_{n}" not in errors]
    assert (rejected, accepted) == ({}, [])
