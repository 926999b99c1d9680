"""Deliberate bugs: the three that lost most messages in the original design, and two more.

The checker must report a scene with one of them switched on: that is how the checker is tested.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from mx_rmq.store import producer_calls as producing
from mx_rmq.store import store as scripted
from mx_rmq.store.script import Script, load
from mx_rmq.store.store import Store
from tests.lab.mutants import MUTANTS, Mutant

if TYPE_CHECKING:
    from mx_rmq.store.results import Dispatched

NO_TOKEN_CHECK: Final = "no token check"
TIME_OUT_REMOVES: Final = "a time-out removes"
TWO_STEP_DISPATCH: Final = "dispatch in two steps"
BUGS: Final = (NO_TOKEN_CHECK, TIME_OUT_REMOVES, TWO_STEP_DISPATCH)

ONE_TOO_MANY: Final = "one more than the limit"
"""Only for the trial of limits by key."""

FORGETS_STEPS: Final = "steps are not noted"
"""Only for the trial of steps."""

STEP: Final = 0.2
"""Seconds between the two steps."""

_REMOVES: Final = (
    Mutant(
        "a time-out gives up the lease",
        "handle_timeout_message",
        "  redis.call('HSET', processing, unpack(leases))\n",
        "  redis.call('HDEL', processing, unpack(ids))\n",
    ),
    Mutant(
        "a time-out gives up the deadline",
        "handle_timeout_message",
        "  redis.call('ZADD', expire_monitor, unpack(deadlines))\n",
        "  redis.call('ZREM', expire_monitor, unpack(ids))\n",
    ),
)
_OFF_BY_ONE: Final = (
    Mutant(
        "a key has one place more than its limit",
        "dispatch_in_turn",
        "    places_of[line] = math.max(0, limit - busy)\n",
        "    places_of[line] = math.max(0, limit - busy + 1)\n",
    ),
)
_NOT_NOTED: Final = tuple(
    Mutant("a record is not written", script, "redis.call('HSET', payload, unpack(records))\n", "")
    for script in ("note_record", "retry_message")
)
_NO_LEASE: Final = tuple(
    mutant
    for mutant in MUTANTS
    if mutant.fault in ("dispatch sets no deadline", "dispatch sets no lease")
)


def switch_on(bug: str) -> None:
    """Switch a bug on in this process."""
    if bug == NO_TOKEN_CHECK:
        mutants = tuple(one for one in MUTANTS if one.fault.endswith("without a token check"))
    elif bug == TIME_OUT_REMOVES:
        mutants = _REMOVES
    elif bug == ONE_TOO_MANY:
        mutants = _OFF_BY_ONE
    elif bug == FORGETS_STEPS:
        mutants = _NOT_NOTED
    else:
        mutants = _NO_LEASE
        _dispatch_in_two_steps()
    mutated: dict[str, Script] = {}
    for one in mutants:
        before = mutated.get(one.script, load(one.script)).source
        assert before.count(one.old) == 1, one.fault
        mutated[one.script] = Script.parse(one.script, before.replace(one.old, one.new))

    def load_mutated(name: str) -> Script:
        return mutated.get(name) or load(name)

    for module in (scripted, producing):
        vars(module)["load"] = load_mutated


def _dispatch_in_two_steps() -> None:
    first_step = Store.dispatch_message

    async def dispatch_message(self: Store, topic: str, worker: str, **named: Any) -> Dispatched:
        taken = await first_step(self, topic, worker, **named)
        await asyncio.sleep(STEP)
        keys = self.keys.of(topic)
        deadline = round(time.time() * 1000) + named["lease"]
        for one in taken.messages:
            lease = f"{one.token}:{worker}"
            await self.caller.command("HSET", keys.processing, one.id, lease)
            await self.caller.command("ZADD", keys.expire_monitor, deadline, one.id)
        return taken

    Store.dispatch_message = dispatch_message  # type: ignore[assignment]
