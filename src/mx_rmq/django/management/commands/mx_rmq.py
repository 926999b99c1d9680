"""`manage.py mx_rmq …`: every command of `mx-rmq`, with the queue of this project."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any, Final

from django.apps import apps
from django.conf import ENVIRONMENT_VARIABLE, settings
from django.core.management.base import BaseCommand, CommandParser

from mx_rmq.cli import main
from mx_rmq.cli.host import Host
from mx_rmq.django.project_queue import queue_from

TARGET: Final = "mx_rmq.django:mq"
HINT: Final = "declare one with @mq.handler(topic) in handlers.py of an app in INSTALLED_APPS"
DJANGO_OPTIONS: Final = ("--settings", "--pythonpath")
"""Django has applied these before it calls us. They stand before the name of our command."""


class Command(BaseCommand):
    help = "Runs every command of mx-rmq, for example: worker, stats, list, requeue."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("words", nargs=argparse.REMAINDER)  # for call_command

    def run_from_argv(self, argv: list[str]) -> None:
        program = [*_python(argv[0]), argv[1]]
        words = argv[2:]
        while words and words[0].partition("=")[0] in DJANGO_OPTIONS:
            taken = 1 if "=" in words[0] else 2
            program += words[:taken]
            words = words[taken:]
        _run(words, program, f"{Path(argv[0]).name} {argv[1]}")

    def handle(self, *args: Any, **options: Any) -> None:
        _run([*options["words"]], [*_python(sys.argv[0]), "mx_rmq"], "mx_rmq")


def _python(script: str) -> list[str]:
    """Return what runs the script of this process again, which may be `python -m django`."""
    spec = sys.modules["__main__"].__spec__
    if spec is None:
        return [sys.executable, script]
    return [sys.executable, "-m", spec.name.removesuffix(".__main__")]


def _run(words: list[str], program: list[str], name: str) -> None:
    def queue(**given: Any) -> Any:
        return queue_from(getattr(settings, "MX_RMQ", {}), **given)

    main.main(
        words,
        prog_name=name,
        obj=Host(queue=queue, command=program, modules=_modules(), hint=HINT),
        default_map={"worker": {"target": TARGET}},
    )


def _modules() -> list[str]:
    """Return the project's own apps, which are not installed as packages, and its settings."""
    installed = {"site-packages", "dist-packages"}
    names = [
        one.name
        for one in apps.get_app_configs()
        if installed.isdisjoint(Path(one.path).parts) and one.label != "mx_rmq"
    ]
    module = os.environ.get(ENVIRONMENT_VARIABLE)
    return [*names, module] if module else names
