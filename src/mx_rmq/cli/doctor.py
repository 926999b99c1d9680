"""`mx-rmq doctor`: checks the server and the queue."""

from __future__ import annotations

import click

from mx_rmq.cli.connection import Queue, on_queue
from mx_rmq.cli.output import as_json, print_json, say
from mx_rmq.core.errors import OutcomeUnknown, ScriptFailed, ServerUnavailable
from mx_rmq.doctor.finding import Finding, Severity
from mx_rmq.doctor.queue import check_queue
from mx_rmq.doctor.server import examine

COLOURS = {
    Severity.OK: "green",
    Severity.SKIP: "cyan",
    Severity.WARN: "yellow",
    Severity.BAD: "red",
}


@click.command
@click.option("--quick", is_flag=True, help="Skip the audit, which reads every message id.")
@click.option("--strict", is_flag=True, help="Exit with code 1 on warnings, too.")
@as_json
@on_queue
async def doctor(queue: Queue, quick: bool, strict: bool, as_json: bool) -> int:
    """Check the server and every topic; say what is wrong and what to do about it.

    ok: as it should be. skip: this user lacks the rights to check it. warn: it needs attention.
    bad: messages are lost, stuck or refused, or will be.

    Exit code 0: nothing is bad. 1: something is. 2: the server could not be checked.
    """
    queue.check()
    settings = queue.settings
    health = await examine(
        settings.address,
        prefix=settings.prefix,
        patience=settings.patience,
        load_scripts=settings.load_scripts,
    )
    findings = [*health.findings]
    if health.usable:
        try:
            async with queue.open() as admin:
                findings += await check_queue(admin, audit=not quick)
        except (ServerUnavailable, OutcomeUnknown) as error:
            findings.append(Finding(Severity.BAD, f"the topics cannot be listed: {error}"))
        except ScriptFailed as error:
            findings.append(
                Finding(
                    Severity.SKIP,
                    f"the topics were not checked: {error}",
                    "Use deploy/acl/operator.acl",
                )
            )
    else:
        findings.append(
            Finding(Severity.WARN, "the topics were not checked", "Fix the server first")
        )
    found = {one.severity for one in findings}
    bad = Severity.BAD in found
    failed = bad or (strict and Severity.WARN in found)
    if as_json:
        document = {"ok": not failed, "bad": bad, "findings": [_document(one) for one in findings]}
        print_json(document)
    else:
        for one in findings:
            click.secho(f"{one.severity:<5}", fg=COLOURS[one.severity], nl=False)
            say(str(one))
    return int(failed)


def _document(one: Finding) -> dict[str, str]:
    return {"severity": one.severity, "what": one.title, "cure": one.cure}
