"""The command line. Signals, log configuration and exit codes live here and nowhere else.

One file per command. COMMANDS is all that `--help` and shell completion need, so a command's file
is imported only when that command is called.
"""

from __future__ import annotations

from typing import Final

import click

from mx_rmq.cli.program import Program

COMMANDS: Final = {
    "abort": ("abort", "Stop messages for good, even while their handlers run."),
    "audit": ("audit", "Check that every message is in exactly one state."),
    "cancel": ("cancel", "Remove messages that no worker has started."),
    "completion": ("completion", "Print the script for shell completion."),
    "dashboard": ("dashboard", "Serve a dashboard for your browser."),
    "demo": ("demo", "Watch a small shop survive the kill -9 of a worker."),
    "discard": ("discard", "Delete dead or quarantined messages."),
    "doctor": ("doctor", "Check the server and the queue, and say what to fix."),
    "edit": ("edit", "Change the payload of a dead or quarantined message."),
    "grow": ("grow", "Give a topic more partitions."),
    "keys": ("keys", "List the keys of a topic, and what holds each back."),
    "limit": ("limit", "Show or change the limits of a topic or a key."),
    "list": ("list_messages", "List the messages of a topic in a given state."),
    "load-scripts": ("load_scripts", "Load the Lua scripts on every server in advance."),
    "pause": ("pause", "Stop workers from taking messages of a topic or a key."),
    "pause-schedule": ("pause_schedule", "Pause a schedule."),
    "produce": ("produce", "Produce messages."),
    "requeue": ("requeue", "Move dead or quarantined messages back to pending."),
    "reschedule": ("reschedule", "Give a pending or delayed message another due time."),
    "result": ("result", "Print what the handler of a message returned."),
    "resume": ("resume", "Let workers take messages of a paused topic or key again."),
    "resume-schedule": ("resume_schedule", "Let a paused schedule fire again."),
    "run-schedule": ("run_schedule", "Produce the message of a schedule now."),
    "schedule": ("schedule", "Produce a payload at every tick of a cron expression."),
    "schedules": ("schedules", "List the schedules and when they run next."),
    "server": ("server", "Run the embedded server in the foreground."),
    "show": ("show", "Show everything about one message."),
    "signal": ("signal", "Send a signal to a message that waits for it."),
    "stats": ("stats", "Count the messages of each topic by state."),
    "subscriptions": ("subscriptions", "List the subscriptions of a topic, and their lag."),
    "tail": ("tail", "Show what happens to messages, live."),
    "unschedule": ("unschedule", "Remove a schedule."),
    "unsubscribe": ("unsubscribe", "End a subscription of a topic."),
    "worker": ("worker", "Run a worker."),
    "workers": ("workers", "List the workers that were seen recently."),
}
"""Command -> (file, which is also the name of the function in it; one line of help)."""

EXIT_CODES: Final = """\b
Exit codes:
  0    success
  1    not found, or a check found a problem
  2    failed: wrong usage, or the server is not available
  130  interrupted (worker, server and dashboard return 0)
  141  the output was closed, for example by | head
"""


@click.group(
    "mx-rmq",
    cls=Program,
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
)
@click.version_option(package_name="mx-rmq")
def main() -> None:
    """mx-rmq: a message queue for Python on Redis and Valkey."""
