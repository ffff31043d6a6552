"""The clauses of what a store refuses, and of what it must not refuse, each as a check."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ..interfaces import claimed
from ..values import INBOX, INBOX_DIGITS, INBOX_SUPPLIED, inbox_key, shown
from .subject import LONG, MINUTE, NOW, UNSTORABLE, Subject, expect, expect_refused

__all__ = [
    "check_c18_the_inbox_space_is_the_stores",
    "check_c19_what_cannot_be_stored_is_refused_first",
]

TEXTS = (
    *("", " ", "a", "A", "a ", " a", "a\0", "a\0b", "'; --", "%", "_", "1", "01", "1.0"),
    *("é", "e\u0301", "\U0001f600", "\U0001f601", "x" * 10_000, "x" * 10_000 + "y"),
    *("a/b", "a\\b", "a%2Fb", "a\nb", "a\r\nb", "x" * 70_000, "x" * 70_000 + "y"),
)
"""Ids that are all different, each of them fit for a workflow, and but for "" for a key."""

MALFORMED = (
    *(f"{INBOX}{position}" for position in ("7", "", "text", "0" * (INBOX_DIGITS - 1) + "x")),
    *(f"{INBOX}{sign}{7:0{INBOX_DIGITS - 1}d}" for sign in "+- "),
    *(f"{INBOX}{7:0{digits}d}" for digits in (INBOX_DIGITS - 1, INBOX_DIGITS + 1)),
    f"{INBOX}{7:_>{INBOX_DIGITS}d}",
    INBOX + "\u0660" * INBOX_DIGITS,
    f"{inbox_key(7)}\n",
    f"{INBOX}{10**INBOX_DIGITS - 1}",
    inbox_key(INBOX_SUPPLIED),
)
"""Keys in the inbox space that are no key of a message, or of one too far ahead."""


async def check_c18_the_inbox_space_is_the_stores(subject: Subject) -> None:
    """C18: no pass writes into the inbox space, and `supply` only where it is well-formed."""
    async with subject.opened() as at:
        store = at.checkpointer
        runs: list[object] = []
        holder = await claimed(store, "w", LONG, LONG)
        calls: dict[str, Callable[[str], Awaitable[object]]] = {
            "record": lambda key: store.record(holder, key, "spoof"),
            "arrive": lambda key: at.durable.arrive("w", key, "spoof"),
        }
        if await at.co_commits():
            calls["transact"] = lambda key: store.transact(holder, key, runs.append)
        for name, call in calls.items():
            for key in (inbox_key(7), INBOX, f"{INBOX}7", f"{INBOX}text", MALFORMED[0]):
                why = f"{name} into the inbox space is allowed, under {key!r}"
                await expect_refused(ValueError, call(key), why)
        for key in MALFORMED:
            why = f"supply of a malformed key into the inbox space is allowed: {key!r}"
            await expect_refused(ValueError, store.supply("w", key, "spoof"), why)
        expect(await store.load("w") == {}, "a refused key was written")
        await at.expect_quiet("what should have arrived was refused")
        expect(not runs, "the effect of a refused key ran")
        for key in ("inbox", "Inbox:7", " inbox:7", "inbox;7"):
            await store.record(holder, key, key)
            loaded = await store.load("w")
            expect(loaded.get(key) == key, f"{key!r}, outside the inbox space, is not recorded")
        for position in (0, 7, INBOX_SUPPLIED - 1):
            await store.supply("w", inbox_key(position), position)
        entry = await store.append("w", "next")
        expect(
            entry.key > inbox_key(INBOX_SUPPLIED - 1),
            "a message sorts before a supplied one",
        )


async def check_c19_what_cannot_be_stored_is_refused_first(subject: Subject) -> None:
    """C19: any text is an id, and what cannot be stored is refused before anything happens."""
    async with subject.opened() as at:
        store = at.checkpointer
        runs: list[object] = []
        for workflow in TEXTS:
            await store.supply(workflow, "id", workflow)
            loaded = await store.load(workflow)
            expect(loaded == {"id": workflow}, f"the workflow of id {shown(workflow)} is {loaded}")
        keys = [text for text in TEXTS if text]
        for key in keys:
            await store.supply("keys", key, key)
        loaded = await store.load("keys")
        wrong = [*map(shown, (key for key in keys if loaded.get(key) != key))]
        expect((list(loaded), wrong) == (keys, []), f"the keys {wrong} hold what belongs to others")
        for between in ("", " ", ":", "/", ".", "-", "_", "|", "\0", "\x1f"):
            one, other = ("v", f"x{between}k"), (f"v{between}x", "k")
            await store.supply(*one, "one's")
            answer = await store.supply(*other, "other's")
            expect(answer == "other's", f"{other} holds what was supplied to {one}")

        holder = await claimed(store, "w", LONG, MINUTE)
        lone, unstorable = "\ud800", UNSTORABLE
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "a key": lambda: store.record(holder, lone, 1),
            "a supplied key": lambda: store.supply("w", lone, 1),
            "an id": lambda: store.supply(lone, "k", 1),
            "an id, appended to,": lambda: store.append(lone, 1),
            "an id, claimed,": lambda: store.claim(lone, LONG, LONG),
            "an id, made ready,": lambda: at.scheduler.make_ready(lone),
            "an id that is no text": lambda: store.claim(7, LONG, LONG),  # type: ignore[arg-type]
            "a key that is no text": lambda: store.supply("w", 7, 1),  # type: ignore[arg-type]
            "a budget of nothing": lambda: store.claim("idle", NOW, LONG),
            "a life of nothing": lambda: store.claim("idle", LONG, NOW),
            "a value": lambda: store.record(holder, "k", unstorable),
            "a supplied value": lambda: store.supply("w", "k", unstorable),
            "a message": lambda: store.append("w", unstorable),
            "a value that arrived": lambda: at.durable.arrive("w", "k", unstorable),
            "a message delivered": lambda: at.durable.deliver("w", unstorable),
        }
        if await at.co_commits():
            calls["a transacted key"] = lambda: store.transact(holder, lone, runs.append)
        for name, call in calls.items():
            await expect_refused(
                (TypeError, ValueError), call(), f"{name} that cannot be stored is not refused"
            )
        await at.expect_quiet("whatever would have made it ready was refused")
        expect(await at.is_free("idle"), "a refused claim left something of itself behind")
        deep: list[object] = []
        for _ in range(100_000):
            deep = [deep]
        try:
            await store.supply("w", "deep", deep)
        except (TypeError, ValueError, RecursionError):
            loaded = await store.load("w")
            expect(loaded == {}, f"what was refused left {list(loaded)} behind")
        else:
            await store.load("w")
        expect(not runs, "an effect ran though its key cannot be stored")
        expect(not await at.is_free("w"), "a refused value cost the holder its claim")
