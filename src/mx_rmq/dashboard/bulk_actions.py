"""What operators do to many messages at once: a job does it, and records it in the audit log."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from mx_rmq.admin import Progress
from mx_rmq.core.errors import InvalidInput
from mx_rmq.dashboard.actions import Form, positive
from mx_rmq.dashboard.jobs import DONE, Job, run_bulk
from mx_rmq.dashboard.pages import ACTS, state_of
from mx_rmq.dashboard.search import Search

if TYPE_CHECKING:
    from starlette.responses import Response

    from mx_rmq.core.message import State
    from mx_rmq.dashboard.request import DashboardRequest

COUNT_WITHIN: Final = 0.15  # seconds for counting messages before asking for confirmation


async def confirm_bulk(request: DashboardRequest) -> Response:
    """Count the messages that match, and ask for confirmation for exactly those."""
    act, state, search = _bulk(request.query)
    fixed = replace(search, as_of=await request.admin.now())
    there = getattr(await request.admin.stats(request.topic), state)
    counted, checked = (there, None) if not search else await _count(request, act, state, fixed)
    return request.page(
        "bulk.html",
        act=act,
        done=DONE[act],
        state=state,
        search=search,
        fields=fixed.fixed(),
        there=there,
        counted=counted,
        checked=checked,
    )


async def bulk(request: DashboardRequest, form: Form) -> Response:
    """Start a job."""
    act, state, search = _bulk(form)
    job = Job(
        who=request.operator,
        where=request.where,
        act=act,
        topic=request.topic,
        state=state,
        search=search,
        limit=positive(form, "limit"),
        rate=positive(form, "rate"),
        reason=form.get("reason", ""),
    )
    request.parts.jobs.start(job)
    return request.go("jobs", job.id)


async def stop(request: DashboardRequest, _: Form) -> Response:
    """Stop a job."""
    job = request.job
    request.parts.jobs.stop(job.id)
    request.note("stop", f"job {job.id}", topic=job.topic)
    return request.go("jobs", job.id, notice="stopping")


async def _count(
    request: DashboardRequest, act: str, state: State, search: Search
) -> tuple[int, int | None]:
    """Return how many messages match; and how many were checked, if there was no time for all."""
    progress = [Progress(0, 0, 0)]
    options = {"dry_run": True, "progress": progress.append}
    try:
        async with asyncio.timeout(COUNT_WITHIN):
            done = await run_bulk(request.admin, act, request.topic, state, search, **options)
            return done, None
    except TimeoutError:
        return progress[-1].done, progress[-1].looked


def _bulk(fields: Form) -> tuple[str, State, Search]:
    act, state = fields.get("act", ""), state_of(fields.get("state", ""))
    if act not in ACTS[state]:
        raise InvalidInput(f"act={act!r:.80} cannot be applied to {state} messages")
    return act, state, Search.of(fields)
