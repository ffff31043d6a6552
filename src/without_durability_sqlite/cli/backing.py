"""`backup`: a copy while the file is in use."""

from __future__ import annotations

import time
from argparse import Namespace

from without_durability_sqlite.backing_up import backup as copied
from without_durability_sqlite.looking import looked

from .acting import DID
from .moments import many, size
from .ours import check_holds_workflows
from .refusals import DONE, Refused
from .screen import Screen

EVERY = 0.1
"""Seconds between two progress lines."""


def backup(file: str, typed: Namespace, screen: Screen) -> int:
    """The copy whole under its name, or nothing; exit 1 where something stands there."""
    looked(file, lambda at: check_holds_workflows(at, file), wait=screen.wait)  # of any schema
    told_at = 0.0

    def told(pages: int, of: int) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= EVERY:
            told_at = time.monotonic()
            screen.progress(f"copied {pages * 100 // max(1, of)} % of {many(of, 'page')}")

    try:
        made = copied(
            file,
            typed.dest,
            force=typed.force,
            verify=typed.verify,
            progress=told,
            wait=screen.wait,
        )
        screen.done = DID
    except FileExistsError as error:
        raise Refused(f"{error}: pass --force to overwrite it") from error
    except ValueError as error:
        raise Refused(str(error)) from error
    finally:
        screen.progressed()
    verified = ""
    if made.counts is not None:
        held = many(made.counts["workflow_checkpoint"], "record")
        if "workflow_run" in made.counts:
            held = f"{many(made.counts['workflow_run'], 'workflow')} and {held}"
        verified = f", verified: sound, with {held}"
    screen.answer(
        f"{screen.named(made.path)}: {size(made.size)}{verified}",
        {"path": made.path, "bytes": made.size, "verified": typed.verify, "rows": made.counts},
    )
    return DONE
