"""`mx-rmq completion`: shell completion of commands, options and topics."""

from __future__ import annotations

import click


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
    from click.shell_completion import BashComplete, FishComplete, ZshComplete

    script = {"bash": BashComplete, "fish": FishComplete, "zsh": ZshComplete}[shell]
    click.echo(script(context.find_root().command, {}, "mx-rmq", "_MX_RMQ_COMPLETE").source())
