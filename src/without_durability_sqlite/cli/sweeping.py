"""`sweep`: deleting what finished long ago."""

from __future__ import annotations

import sqlite3
from argparse import Namespace

from without_durability.explaining import in_words
from without_durability.values import SWEPT
from without_durability_sqlite.lookups import SWEEPABLE
from without_durability_sqlite.rows import rows
from without_durability_sqlite.store import SqliteDurable

from .acting import Tally, acted, confirm
from .moments import many
from .ours import look_at
from .refusals import DONE
from .screen import Screen

WOULD_GO = f"SELECT count(*) FROM ({SWEEPABLE})"
WITHOUT_LIMIT = -1


def sweep(file: str, typed: Namespace, screen: Screen) -> int:
    """In bounded batches, with how far it is; `--dry-run` only counts."""
    now = screen.now().timestamp()

    def look(connection: sqlite3.Connection) -> dict[str, int]:
        asked = {
            "now": now,
            "before": now - typed.older.total_seconds(),
            "limit": WITHOUT_LIMIT,
        }
        return {
            state: rows(connection, WOULD_GO, asked | {"state": state})[0][0]
            for state in typed.states
        }

    ripe = look_at(file, screen, look)
    count = sum(ripe.values())
    kinds = " and ".join(f"{ripe[state]} {state}" for state in ripe)
    older = f"unchanged for {in_words(typed.older)}"
    if typed.dry_run:
        screen.answer(
            f"{many(count, 'workflow')} would go: {kinds}, {older}",
            {"older_seconds": typed.older.total_seconds(), "would_go": ripe},
        )
        return DONE
    if count:
        confirm(screen, f"Delete {many(count, 'workflow')} ({kinds}, {older})?")
    with Tally(screen, count, "were swept") as swept:
        if count:
            acted(file, screen, lambda durable: _sweep(durable, typed, screen, count, swept))
    screen.answer(
        f"{many(swept.done, 'workflow is', 'workflows are')} swept, {older}",
        {"older_seconds": typed.older.total_seconds(), "swept": swept.done},
    )
    return DONE


async def _sweep(
    durable: SqliteDurable, typed: Namespace, screen: Screen, ripe: int, swept: Tally
) -> None:
    while True:
        screen.progress(f"swept {swept.done} of {ripe}")
        limit = min(SWEPT, max(20, ripe // 100))
        gone = await durable.sweep(older=typed.older, states=typed.states, limit=limit)
        swept.done += gone
        if not gone:
            return
