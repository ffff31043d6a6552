"""What can be typed: the commands, their arguments, and the help for each."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

from without_durability.checks import check_step_key
from without_durability.codec import JSON
from without_durability.ledger import FINISHED, STATES
from without_durability.values import PAGE, shown

from . import moments
from .refusals import Usage
from .text import escaped

PROGRAM = "without-durability"

T = TypeVar("T")

_WHOLE = re.compile(r"[0-9]{1,30}", re.ASCII)

_DESCRIPTION = """\
See and steer the durable workflows in an SQLite file.

Commands that only read open the file read-only: they take no write lock, change nothing, and
work while workers run. No command creates a file or brings an older one up to date."""

_EPILOGUE = """\
examples:
  without-durability orders.db status
  without-durability orders.db list --state failed
  without-durability orders.db why order-17
  without-durability orders.db COMMAND --help

exit codes: 0 done, 1 refused or something is wrong, 2 not a command, 74 standard output cannot be
written, 130 interrupted"""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in a line, and leaves the exit to its caller."""

    def error(self, message: str) -> NoReturn:
        raise Usage(message)


def parsed(argv: list[str] | None) -> argparse.Namespace:
    """The command that was typed; `Usage` for none."""
    try:
        typed = _parser().parse_args(argv)
    except Usage as error:
        hint = _dashed(str(error), sys.argv[1:] if argv is None else argv)
        raise Usage(f"{escaped(str(error))}{hint} (see {PROGRAM} --help)") from None
    if typed.command == "retry":
        if (typed.workflow is None) != typed.failed:
            raise Usage("retry takes either an ID or --failed")
        if typed.namespace is not None and not typed.failed:
            raise Usage("--namespace goes with --failed: a workflow is retried in its own queue")
    if typed.command == "sweep":
        typed.states = tuple(dict.fromkeys(typed.state or ("completed",)))
    return typed


def _dashed(message: str, argv: list[str]) -> str:
    """What to do where something that begins with a dash was not to be an option."""
    if "expected one argument" in message:
        return "; a value that begins with a dash is joined to its option: --option=-value"
    options = argv[: argv.index("--")] if "--" in argv else argv
    lost = "required" in message or "unrecognized" in message
    if lost and any(one.startswith("-") for one in options):
        return "; what begins with a dash and is no option goes after `--`"
    return ""


def _parser() -> Parser:
    parser = Parser(
        prog=PROGRAM,
        description=_DESCRIPTION,
        epilog=_EPILOGUE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("file", metavar="FILE", help="the database file")
    _common(parser, absent=False)
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, title="commands"
    )
    _reading(commands)
    _writing(commands)
    _upkeep(commands)
    return parser


def _common(parser: argparse.ArgumentParser, *, absent: Any) -> None:
    """The options that may stand before the command and after it."""
    group = parser.add_argument_group("options of every command")
    for name, said in (
        ("--json", "one JSON document, or one line per item"),
        ("--utc", "times in UTC instead of the local zone"),
        ("--full", "values whole instead of shortened"),
        ("--yes", "do not ask before what cannot be taken back"),
    ):
        group.add_argument(name, action="store_true", default=absent, help=said)


def _command(commands: Any, name: str, said: str, example: str, more: str = "") -> Parser:
    command: Parser = commands.add_parser(
        name,
        help=said,
        description=f"{said[0].upper()}{said[1:]}.{more}",
        epilog=f"example:\n  {PROGRAM} orders.db {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _common(command, absent=argparse.SUPPRESS)
    return command


def _reading(commands: Any) -> None:
    _command(commands, "status", "counts by state and queue, who is at work, failures", "status")

    listing = _command(commands, "list", "workflows, newest first", "list --state blocked")
    listing.add_argument("--state", choices=STATES, help="only those in this state")
    listing.add_argument("--namespace", type=_id, metavar="QUEUE", help="only those of this queue")
    listing.add_argument("--prefix", type=_id, help="only ids that begin so")
    listing.add_argument("--limit", type=_limit, default=PAGE, help=f"how many ({PAGE})")
    listing.add_argument("--after", type=_after, help="go on after this one; `list` says what")

    show = _command(commands, "show", "a workflow's timeline, record by record", "show order-17")
    show.add_argument("workflow", type=_id, metavar="ID")

    why = _command(
        commands, "why", "what a workflow does or waits for, in a sentence", "why order-17"
    )
    why.add_argument("workflow", type=_id, metavar="ID")

    _command(
        commands,
        "watch",
        "status and newest changes, until Ctrl-C",
        "watch",
        "\nOn a terminal they are redrawn in place; elsewhere each change is a line.",
    )


def _writing(commands: Any) -> None:
    arrive = _command(
        commands,
        "arrive",
        "record a value under a key and make ready",
        "arrive order-17 'approved by' '\"Ada\"'",
        "\nThe first value under a key stands.",
    )
    arrive.add_argument("workflow", type=_id, metavar="ID")
    arrive.add_argument("key", type=_key, metavar="KEY")
    arrive.add_argument("value", type=_json, metavar="JSON", help='the value; text in "quotes"')
    _queue(arrive)

    deliver = _command(
        commands,
        "deliver",
        "put a message in a workflow's inbox and make ready",
        "deliver order-17 '{\"lines\": 3}'",
    )
    deliver.add_argument("workflow", type=_id, metavar="ID")
    deliver.add_argument("value", type=_json, metavar="JSON", help="the message")
    _queue(deliver)

    retry = _command(
        commands, "retry", "start what failed or was cancelled again", "retry --failed --yes"
    )
    retry.add_argument("workflow", type=_id, metavar="ID", nargs="?")
    retry.add_argument("--failed", action="store_true", help="all that failed; asks")
    retry.add_argument("--namespace", type=_id, metavar="QUEUE", help="of those, this queue's")

    cancel = _command(
        commands,
        "cancel",
        "stop a workflow for good and keep its history; asks",
        "cancel order-17 --reason 'ordered twice'",
    )
    cancel.add_argument("workflow", type=_id, metavar="ID")
    cancel.add_argument("--reason", type=_id, default="", help="kept with it")

    rewind = _command(
        commands,
        "rewind",
        "forget a step and all after it, and run again; asks",
        "rewind order-17 charge",
        "\nWhat came from outside stays.",
    )
    rewind.add_argument("workflow", type=_id, metavar="ID")
    rewind.add_argument("step", type=_id, metavar="STEP")

    fork = _command(
        commands,
        "fork",
        "start a new workflow from another's records",
        "fork order-17 order-17b --before charge",
    )
    fork.add_argument("workflow", type=_id, metavar="ID")
    fork.add_argument("into", type=_id, metavar="NEW")
    fork.add_argument("--before", type=_id, metavar="STEP", help="only the records before this one")

    delete = _command(
        commands, "delete", "remove a workflow and all its records; asks", "delete order-17"
    )
    delete.add_argument("workflow", type=_id, metavar="ID")


def _upkeep(commands: Any) -> None:
    sweep = _command(
        commands,
        "sweep",
        "delete what finished long ago; asks",
        "sweep --older 30d --dry-run",
    )
    sweep.add_argument(
        "--older", type=_span, required=True, help="unchanged for this long: 30d, 12h, 90min, 45s"
    )
    sweep.add_argument(
        "--state",
        choices=FINISHED,
        action="append",
        help="completed unless named; may be given several times",
    )
    sweep.add_argument("--dry-run", action="store_true", help="only count")

    _command(
        commands,
        "check",
        "integrity, schema, and everything that should not be",
        "check",
        "\nExit 1 if anything is wrong; each finding says what to do.",
    )

    backup = _command(
        commands,
        "backup",
        "a consistent copy while the file is in use",
        "backup /backups/orders.db --verify",
    )
    backup.add_argument("dest", metavar="DEST", help="the file to write")
    backup.add_argument("--verify", action="store_true", help="check the copy beforehand")
    backup.add_argument("--force", action="store_true", help="overwrite what is there")


def _queue(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--namespace",
        type=_id,
        metavar="QUEUE",
        help='the queue to make it ready in; else where it was last, else "workflow"',
    )


def _typed(check: Callable[[str], T]) -> Callable[[str], T]:
    """A check as an argument's type: what it raises is what is said."""

    def typed(text: str) -> T:
        try:
            return check(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return typed


def _utf8(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{shown(text)} cannot be stored as UTF-8: {error.reason}") from None
    return text


@_typed
def _id(text: str) -> str:
    return _utf8(text)


@_typed
def _key(text: str) -> str:
    _utf8(text)
    check_step_key(text)
    return text


@_typed
def _json(text: str) -> object:
    try:
        value: object = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        hint = f", such as '{json.dumps(text)}' for a text" if len(text) < 40 else ""
        reason = "nested too deep" if isinstance(error, RecursionError) else error
        raise ValueError(f"it must be JSON{hint}: {reason}") from None
    JSON.encode(value).encode()
    return value


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


@_typed
def _span(text: str) -> timedelta:
    return moments.span(text)


@_typed
def _limit(text: str) -> int:
    limit = _whole(text)
    if limit is None or limit < 1:
        raise ValueError(f"it must be a whole number of at least 1, not {shown(text)}")
    return limit


@_typed
def _after(text: str) -> int:
    after = _whole(text)
    if after is None or not 0 <= after < 2**62:
        raise ValueError(
            f"it must be the number that `list` gave at the end of its page, not {shown(text)}"
        )
    return after


def _whole(text: str) -> int | None:
    """The whole number that is typed; `None` for anything else, and for one of many digits."""
    return int(text) if _WHOLE.fullmatch(text) else None
