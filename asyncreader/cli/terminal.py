"""Output of the commands: errors in one line, progress, tables, and printable text."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import sys
import textwrap
import time
import traceback
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from ..errors import AsyncReaderError, ParamsError, shown
from ..system.text import in_time, slip

#: Exit codes: the first four are the contract's, the last two what a shell gives for the signals.
OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
SOME_SKIPPED: Final = 3
INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141


def check_converters() -> None:
    """AsyncReaderError where another module called ``converters`` hides the package."""
    expected = Path(__file__).resolve().parents[2] / "converters" / "__init__.py"
    spec = importlib.util.find_spec("converters")
    found = None if spec is None or spec.origin is None else Path(spec.origin).resolve()
    if found is not None and found != expected:
        raise AsyncReaderError(
            "another module called converters comes first on Python's path",
            found=str(found),
            expected=str(expected),
            hint="rename that file, or take its folder out of PYTHONPATH",
        )


def open_standard_streams() -> None:
    """Open /dev/null as each of stdin, stdout and stderr that is closed, as daemons have them.

    The next file that is opened would get that descriptor, and hold what a library prints there.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # the lowest free descriptor is this one; child processes get it, too
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def say(text: str) -> None:
    """Print a line on stderr. A closed stderr is no error.

    On a terminal a long line is wrapped between words.
    """
    try:
        if sys.stderr.isatty():
            columns = shutil.get_terminal_size((80, 24)).columns
            text = "\n".join(folded(line, columns, "  ") for line in text.split("\n"))
        click.echo(text, err=True)
    except OSError:
        drop(sys.stderr)


def folded(line: str, columns: int, indent: str = "") -> str:
    """``line`` wrapped between words to ``columns``; ``indent``: before all lines but the first."""
    if len(line) <= columns:
        return line
    return textwrap.fill(
        line, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def drop(stream: Any) -> None:
    """Discard what is still buffered for a closed pipe, so that exit does not fail again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class Cli(click.Group):
    """Turns whatever ends a command into one line and an exit code."""

    def main(self, *args: Any, **settings: Any) -> NoReturn:
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):  # its encoding may lack the letters of a name
                stream.reconfigure(errors="backslashreplace")
        settings["standalone_mode"] = False
        try:
            code = super().main(*args, **settings)
        except click.ClickException as exc:
            context = getattr(exc, "ctx", None)
            command = "asyncreader" if context is None else context.command_path
            say(f"error: {shown(_usage(exc).rstrip('.'))}; see '{command} --help'")
            code = exc.exit_code
        except (click.Abort, KeyboardInterrupt):
            code = INTERRUPTED
        except OSError as exc:  # --help to a full disk
            say(f"error: {shown(exc)}")
            code = FAILED
        if code:
            try:
                sys.stdout.flush()
            except OSError:  # Python would try again at exit, and end with 120
                drop(sys.stdout)
        sys.exit(code or OK)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # people add --traceback at the end of the line that failed
        return super().parse_args(ctx, sorted(args, key=lambda word: word != "--traceback"))

    def invoke(self, ctx: click.Context) -> Any:
        with warnings.catch_warnings():
            whole = ctx.params["traceback"]
            warnings.showwarning = lambda message, *_, **__: say(_warning(message, whole))
            try:
                code = super().invoke(ctx)
                sys.stdout.flush()
                return code
            except KeyboardInterrupt:
                say("interrupted")
                return INTERRUPTED
            except BrokenPipeError:
                drop(sys.stdout)
                return PIPE_CLOSED
            except (AsyncReaderError, OSError) as exc:
                if ctx.params["traceback"]:
                    say("\n".join(map(shown, traceback.format_exc().rstrip().split("\n"))))
                say(f"error: {shown(exc)}")
                return USAGE if isinstance(exc, ParamsError) else FAILED


def _usage(exc: click.ClickException) -> str:
    """What is wrong with a command line. click suggests options that are only a little alike."""
    if not isinstance(exc, click.NoSuchOption):
        return exc.format_message()
    near = slip(exc.option_name, exc.possibilities or ())
    return exc.message if near is None else f"{exc.message} Did you mean {near!r}?"


def _warning(message: object, whole: bool) -> str:
    """A warning in one line; with --traceback all of its lines, such as where a thread hangs."""
    lines = str(message).splitlines() or [""]
    if whole:
        return "\n".join(["warning: " + shown(lines[0]), *map(shown, lines[1:])])
    more = " (--traceback shows where)" if len(lines) > 1 else ""
    return f"warning: {shown(lines[0].removesuffix(' it is in:').rstrip(':;'))}{more}"


#: Least and most seconds between two lines of progress where there is no terminal.
_LINES_APART: Final = (1.0, 60.0)


class Progress:
    """Called with (done, total): a bar on a terminal; elsewhere a line each 10 %, or a minute.

    ``resumed``: the first call says how many were done before, which are no part of the rate.
    """

    def __init__(self, doing: str, quiet: bool, plain: bool = True, resumed: bool = False) -> None:
        self._doing, self._quiet, self._plain, self._resumed = doing, quiet, plain, resumed
        self._bar: Any = None
        self._task: Any = None
        self._began = self._last = time.monotonic()
        self._tenths = self._before = 0
        self._compiling = False

    def __enter__(self) -> Progress:
        if not self._quiet and on_terminal():
            from rich import progress
            from rich.console import Console

            self._bar = progress.Progress(
                progress.TextColumn("{task.description}", markup=False),
                progress.BarColumn(24),
                progress.TextColumn("{task.fields[how]}"),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task(self._doing, total=None, how="")
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._resumed:
            self._resumed, self._before, self._began = False, done, now
            self._tenths = done * 10 // total
            return
        rate = (done - self._before) / max(now - self._began, 1e-9)
        # what comes after the last one, such as reading all back, has no count of its own
        left = f"{in_time((total - done) / rate)} left" if done < total else "finishing"
        how = f"{rate:,.0f}/s, {left}" if rate >= 10 else f"{rate:.1f}/s, {left}"
        if self._bar is not None:
            if now - self._last > 0.1 or done == total:  # ten a second are enough for the eye
                self._last = now
                how = f"{done:,} of {total:,}, {how}"
                self._bar.update(self._task, completed=done, total=total, how=how)
        elif self._plain and not self._quiet:
            tenths, (least, most) = done * 10 // total, _LINES_APART
            if now - self._last >= (least if tenths > self._tenths else most):
                self._tenths, self._last = tenths, now
                say(f"{self._doing}: {done:,} of {total:,} ({done * 100 // total} %), {how}")

    def tell(self, doing: str) -> None:
        """Say what is being done now, on a terminal."""
        if self._bar is not None:
            self._bar.update(self._task, description=shown(doing))

    def compiling(self) -> None:
        """Say that code is compiled, which is kept for the next time. Called by any thread."""
        if self._compiling or self._quiet:
            return
        self._compiling = True
        words = "compiling, once on this machine"
        if self._bar is not None:
            self._bar.update(self._task, how=words)
        elif self._plain:
            say(f"{self._doing}: {words}")


def on_terminal() -> bool:
    """Whether progress can be drawn: stderr is a terminal that moves its cursor."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def print_json(value: object) -> None:
    """ASCII only: a name that is no UTF-8 comes back from json.loads as Python had it. A function,
    such as a parameter's, is told as module:function."""
    click.echo(json.dumps(value, indent=2, allow_nan=False, default=_in_json))


def _in_json(value: object) -> str:
    module, name = (getattr(value, part, None) for part in ("__module__", "__qualname__"))
    return f"{module}:{name}" if module and name else str(value)


def print_table(rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> None:
    """Columns that fit the terminal (80 letters without one); without ``head``: name and value."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=bool(head), pad_edge=False, padding=(0, 2, 0, 0))
    words = {"name", "value", "values", "class", "change", "encoding", "options"}
    for name in head or ("name", "value"):
        justify: Any = "left" if name in words else "right"
        table.add_column(
            name, justify=justify, overflow="fold", style="bold" if name == "name" else ""
        )
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console(highlight=False)
    with console.capture() as captured:  # click prints it: Cli.invoke then handles a closed pipe
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))
