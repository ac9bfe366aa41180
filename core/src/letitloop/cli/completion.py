"""``lil completion``: the script that lets a shell complete commands, options and the names of runs."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from letitloop.cli.common import Command

__all__ = ["completion"]


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.option("--json", "as_json", is_flag=True, help="Print the script as a JSON object.")
@click.pass_context
def completion(ctx: click.Context, *, shell: str, as_json: bool) -> None:
    """Print the script that makes a shell complete lil's commands, options and runs.

    \b
    bash   eval "$(lil completion bash)"            in ~/.bashrc
    zsh    eval "$(lil completion zsh)"             in ~/.zshrc
    fish   lil completion fish > ~/.config/fish/completions/lil.fish
    """  # noqa: D301 - a real backspace: it keeps click from re-wrapping the table
    root = ctx.find_root()
    kind = get_completion_class(shell)
    assert kind is not None
    name = root.info_name if root.info_name in ("lil", "letitloop") else "lil"
    made = kind(root.command, {}, name, f"_{name.upper()}_COMPLETE")
    # click's own check of the installed bash's version is left out: the script may be for another machine
    script = made.source_template % made.source_vars()
    if as_json:
        import json

        click.echo(json.dumps({"shell": shell, "script": script}))
    else:
        click.echo(script)
