"""`mx-rmq doctor`: checks the server and the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from mx_rmq.cli.connection import check_directory, on_settings, open_admin
from mx_rmq.cli.output import as_json, named, print_json, say
from mx_rmq.core.errors import OutcomeUnknown, ScriptFailed, ServerUnavailable
from mx_rmq.doctor.finding import Finding, Severity
from mx_rmq.doctor.queue import check_queue
from mx_rmq.doctor.server import examine

if TYPE_CHECKING:
    from mx_rmq.settings import QueueSettings

COLOURS: Final = {"ok": "green", "skip": "cyan", "warn": "yellow", "bad": "red"}


@click.command
@click.option("--quick", is_flag=True, help="Skip the audit, which reads every message id.")
@click.option("--strict", is_flag=True, help="Exit with code 1 on warnings, too.")
@as_json
@on_settings
async def doctor(settings: QueueSettings, quick: bool, strict: bool, as_json: bool) -> int:
    """Check the server and every topic; say what is wrong and what to do about it.

    ok: as it should be. skip: this user lacks the rights to check it. warn: it needs attention.
    bad: messages are being lost, stuck or refused, or will be.

    Exit code 0: nothing is bad. 1: something is. 2: the server could not be checked.
    """
    check_directory(settings)
    health = await examine(
        settings.address,
        prefix=settings.prefix,
        patience=settings.patience,
        load_scripts=settings.load_scripts,
    )
    findings = [*health.findings]
    if health.usable:
        findings += await _check_queue(settings, audit=not quick)
    else:
        cure = "Fix the server first"
        findings.append(Finding(Severity.WARN, "the topics were not checked", cure))
    found = {one.severity for one in findings}
    bad = Severity.BAD in found
    failed = bad or (strict and Severity.WARN in found)
    if as_json:
        documents = [
            {"severity": f.severity, "what": f.title, "cure": named(f.cure)} for f in findings
        ]
        print_json({"ok": not failed, "bad": bad, "findings": documents})
    else:
        for one in findings:
            click.secho(f"{one.severity:<5}", fg=COLOURS[one.severity], nl=False)
            say(named(str(one)))
    return int(failed)


async def _check_queue(settings: QueueSettings, *, audit: bool) -> list[Finding]:
    try:
        async with open_admin(settings) as admin:
            return await check_queue(admin, audit=audit)
    except (ServerUnavailable, OutcomeUnknown) as error:
        return [Finding(Severity.BAD, f"the topics cannot be listed: {error}")]
    except ScriptFailed as error:
        cure = "Use deploy/acl/operator.acl"
        return [Finding(Severity.SKIP, f"the topics were not checked: {error}", cure)]
