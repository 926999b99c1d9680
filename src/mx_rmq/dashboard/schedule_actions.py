"""What operators do to schedules: each action is a form, and is recorded in the audit log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

from mx_rmq.dashboard.actions import Form, json_payload, noted

if TYPE_CHECKING:
    from starlette.responses import Response

    from mx_rmq.dashboard.request import DashboardRequest


async def schedule(request: DashboardRequest, form: Form) -> Response:
    """Store a schedule."""
    payload = json_payload(form.get("payload", "").strip() or "null", "the payload")
    name, topic = form.get("name", "").strip(), form.get("topic", "").strip()
    await request.admin.schedule(
        name,
        topic,
        form.get("expression", "").strip(),
        payload,
        tz=form.get("tz", "").strip() or "UTC",
        missed=form.get("missed", "skip"),
    )
    request.note("schedule", "done", topic=topic, about=name)
    return request.go("schedules", name, notice="scheduled")


async def pause_schedule(request: DashboardRequest, form: Form) -> Response:
    reason = form.get("reason", "").strip()
    work = request.admin.pause_schedule(request.schedule, reason)
    new = await noted(request, "pause_schedule", work, _about(request, reason))
    return request.go(
        "schedules", request.schedule, notice="schedule_paused" if new else "was_paused"
    )


async def resume_schedule(request: DashboardRequest, _: Form) -> Response:
    work = request.admin.resume_schedule(request.schedule)
    new = await noted(request, "resume_schedule", work, _about(request))
    return request.go(
        "schedules", request.schedule, notice="schedule_resumed" if new else "not_paused"
    )


async def run_schedule(request: DashboardRequest, _: Form) -> Response:
    """Produce the message of a schedule now."""
    id = await request.admin.run_schedule(request.schedule)
    request.note("run_schedule", f"produced {id}", about=_about(request))
    return request.go("schedules", request.schedule, notice="schedule_run")


async def confirm_unschedule(request: DashboardRequest) -> Response:
    """Ask whether to remove a schedule."""
    found = await request.admin.get_schedule(request.schedule)
    if found.declared:
        raise HTTPException(409, "It is declared in code. It can only be paused here.")
    return request.page("unschedule.html", one=found)


async def unschedule(request: DashboardRequest, _: Form) -> Response:
    work = request.admin.unschedule(request.schedule)
    done = await noted(request, "unschedule", work, _about(request))
    return request.go("schedules", notice="unscheduled" if done else "no_schedule")


def _about(request: DashboardRequest, *words: str) -> str:
    return ": ".join(filter(None, (f"schedule {request.schedule}", *words)))
