"""The command line. Each command's imports wait until it runs, so that `--help` answers at once.

Exit codes: 0 done, 1 job failed or schema differs, 2 wrong usage, 4 database or server not
reached, 130 interrupted.
"""

import importlib
import sys
from typing import Any, Final

import click

from app import __version__
from app.domain.errors import (
    ConfigurationError,
    DatabaseUnavailableError,
    DatasetError,
    EmbeddedDatabaseError,
    HaulageError,
    ServiceUnreachableError,
)

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 4

_COMMANDS: Final = {
    "serve": ("app.cli.serve", "serve", "Run API and scheduler in one process."),
    "api": ("app.cli.serve", "api", "Run the API alone."),
    "worker": ("app.cli.serve", "worker", "Run the scheduler alone."),
    "analyse": ("app.cli.analyse", "analyse", "Find the themes in a file of answers."),
    "keys": ("app.cli.keys", "keys", "API keys: create, list, revoke."),
    "db": ("app.cli.database", "database", "Bundled server and schema."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Names in the order of the table above."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return the command, None where there is none."""
        if cmd_name not in _COMMANDS:
            return None
        module, attribute, _ = _COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in _COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="haulage")
def haulage() -> None:
    """Long, heavy jobs on the PostgreSQL that you already have."""


def command_line(arguments: list[str] | None = None) -> None:
    """Run `haulage`; errors of ours are one line on stderr and an exit code."""
    try:
        code: Any = haulage.main(arguments, prog_name="haulage", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.exceptions.Abort, KeyboardInterrupt):
        sys.exit(130)
    except HaulageError as error:
        click.echo(f"haulage: {error}", err=True)
        sys.exit(_exit_code(error))


def _exit_code(error: HaulageError) -> int:
    match error:
        case ConfigurationError() | DatasetError():
            return EXIT_USAGE
        case DatabaseUnavailableError() | EmbeddedDatabaseError() | ServiceUnreachableError():
            return EXIT_UNREACHABLE
        case _:
            return EXIT_FAILED
