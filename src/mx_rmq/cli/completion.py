"""`mx-rmq completion`: shell completion of commands, options and topics."""

from __future__ import annotations

from typing import Final

import click

PROGRAM: Final = "mx-rmq"


@click.command
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="SHELL")
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    bash:  eval "$(mx-rmq completion bash)"                    in ~/.bashrc
    zsh:   eval "$(mx-rmq completion zsh)"                     in ~/.zshrc
    fish:  mx-rmq completion fish > ~/.config/fish/completions/mx-rmq.fish
    """
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    if made is None:  # cannot happen: Choice allows only supported shells
        raise click.UsageError(f"no completion for {shell}")
    click.echo(made(context.find_root().command, {}, PROGRAM, "_MX_RMQ_COMPLETE").source())
