"""`mx-rmq doctor`: is the server fit to hold messages, and is the queue well?"""

from __future__ import annotations

from dataclasses import asdict

import click

from mx_rmq.cli.checkup import look_at_queue
from mx_rmq.cli.connection import Queue, on_queue
from mx_rmq.cli.output import as_json, print_json, say
from mx_rmq.core.errors import OutcomeUnknown, ScriptFailed, ServerUnavailable
from mx_rmq.store.finding import Finding, Severity
from mx_rmq.store.health import examine

COLOURS = {
    Severity.OK: "green",
    Severity.SKIP: "cyan",
    Severity.WARN: "yellow",
    Severity.BAD: "red",
}


@click.command(short_help="Examine the server and the queue; say what to do.")
@click.option("--quick", is_flag=True, help="Without the audit, which reads every message's id.")
@click.option("--strict", is_flag=True, help="Exit code 1 for warnings, too.")
@as_json
@on_queue
async def doctor(queue: Queue, quick: bool, strict: bool, as_json: bool) -> int:
    """Examine the server and every topic; say what is wrong and what to do about it.

    ok: it is as it should be. skip: this user may not look at it. warn: somebody should look at it.
    bad: messages are lost, stuck or refused, or will be.

    Exit code 0: nothing is bad. 1: something is. 2: the server could not be examined.
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
                findings += await look_at_queue(admin, audit=not quick)
        except (ServerUnavailable, OutcomeUnknown) as error:
            findings.append(Finding(Severity.BAD, f"the topics cannot be listed: {error}"))
        except ScriptFailed as error:
            findings.append(
                Finding(
                    Severity.SKIP,
                    f"the topics were not looked at: {error}",
                    "Use deploy/acl/operator.acl",
                )
            )
    else:
        findings.append(
            Finding(Severity.WARN, "the topics were not looked at", "Put the server right first")
        )
    found = {one.severity for one in findings}
    bad = Severity.BAD in found
    failed = bad or (strict and Severity.WARN in found)
    if as_json:
        document = {"ok": not failed, "bad": bad, "findings": [asdict(one) for one in findings]}
        print_json(document)
    else:
        for one in findings:
            click.secho(f"{one.severity:<5}", fg=COLOURS[one.severity], nl=False)
            say(str(one))
    return int(failed)
