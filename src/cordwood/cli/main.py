"""The entry point of the command: its subcommands, imported on demand, and its exit codes."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from cordwood.cli.output import fail, prepare_streams
from cordwood.errors import CordwoodError
from cordwood.message_text import printable

COMMANDS = {  # in the order of the help, each with its module
    "ls": "list_commands",
    "info": "list_commands",
    "show": "leaf_commands",
    "cat": "leaf_commands",
    "diff": "diff_command",
    "verify": "maintenance_commands",
    "convert": "convert_command",
    "copy": "copy_command",
    "delta": "delta_commands",
    "apply": "delta_commands",
    "combine": "combine_commands",
    "average": "combine_commands",
    "merge-lora": "merge_lora_command",
    "index": "index_command",
    "steps": "list_commands",
    "view": "view_command",
    "serve": "serve_command",
    "gc": "maintenance_commands",
    "prune": "prune_command",
    "rm": "remove_command",
    "doctor": "maintenance_commands",
}

EPILOG = """
\b
Exit codes:
  0    success: no difference, no damage, no problem
  1    diff found differences, verify found damage, doctor found a problem, or rm was declined
  2    the arguments are wrong
  3    the checkpoint or leaf does not exist, or it could not be read or written
  130  interrupted

\b
`run/latest` is the newest complete step in the directory `run`; `run/best` the best by its metric.

\b
Set up completion for bash (use zsh_source or fish_source for zsh and fish):
  eval "$(_CORDWOOD_COMPLETE=bash_source cordwood)"
"""


class _Commands(click.Group):
    """A click group that imports each command when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"cordwood.cli.{COMMANDS[cmd_name]}")
        command: click.Command = getattr(module, f"{cmd_name.replace('-', '_')}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] == "help":  # `cordwood help ls`, as in git
            args = [*args[1:2], "--help"]
            if len(args) == 1:
                click.echo(ctx.get_help())
                ctx.exit()
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from cordwood.did_you_mean import nearest_name

            close = nearest_name(args[0], COMMANDS)
            hint = f" Did you mean {close!r}?" if close else ""
            ctx.fail(f"There is no command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)


@click.command(
    cls=_Commands, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="cordwood", prog_name="cordwood")
def cli() -> None:
    """Inspect, verify, compare and convert checkpoints of JAX pytrees.

    A checkpoint is a file (.safetensors, .msgpack, .npz ...), a directory (of cordwood, eFormer,
    Orbax or Hugging Face), or the URL of one (s3://, gs://, az://, hf://org/model). Every command
    has the option --json: it prints one JSON document instead of text, also for errors.
    """


def main() -> Any:
    """Run the command with the arguments of the process, and exit."""
    wants_json = "--json" in sys.argv
    prepare_streams()
    try:
        code = cli(prog_name="cordwood", standalone_mode=False)
    except click.ClickException as e:
        if wants_json:
            fail(e, wants_json=True, code=e.exit_code)
        vars(e).update(message=printable(e.message))
        e.show()
        sys.exit(e.exit_code)
    except (click.Abort, KeyboardInterrupt) as e:
        if isinstance(e.__cause__, CordwoodError):  # a TruncatedError is an EOFError: click aborts
            fail(e.__cause__, wants_json=wants_json, code=3)
        click.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:  # `cordwood ls ... | head`
        sys.stderr.close()
        sys.exit(0)
    except (CordwoodError, OSError, KeyError, ValueError) as e:
        fail(e, wants_json=wants_json, code=3)
    sys.exit(code if isinstance(code, int) else 0)  # the code of an Exit that a command raised
