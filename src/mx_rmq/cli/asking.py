"""Asking somebody before something is destroyed."""

from __future__ import annotations

import sys

import click

from mx_rmq.cli.connection import CannotDo

yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def ask(deed: str, *, yes: bool) -> None:
    """Go on only if somebody says yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CannotDo(f"nobody is there to be asked whether to {deed}: say --yes")
    if not click.confirm(f"{deed[0].upper()}{deed[1:]}?", err=True):
        raise CannotDo("nothing was done")
