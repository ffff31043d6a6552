"""The clauses of what is recorded: values, order, effects and the inbox, each as a check."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from ..interfaces import claimed
from ..signals import Fenced
from ..values import INBOX, Pass, inbox_key
from .subject import (
    LONG,
    MINUTE,
    SECOND,
    NotApplicable,
    Subject,
    expect,
    expect_fenced,
    expect_refused,
    outranked_pass,
)

SUPPLIED_BEYOND = 2**62
"""From this position on `supply` refuses an inbox key (C18)."""

__all__ = [
    "check_c1_load_keeps_the_order_of_first_writing",
    "check_c2_history_tells_the_moment_of_the_winning_write",
    "check_c9_only_the_newest_writes_and_the_first_value_stands",
    "check_c11_what_has_returned_is_durable",
    "check_c12_an_effect_runs_once_and_with_its_record",
    "check_c13_supply_keeps_the_first_and_append_keeps_the_order",
    "check_c16_every_value_crosses_the_codec_both_ways",
    "check_c18_the_inbox_space_is_the_stores",
    "check_c19_what_cannot_be_stored_is_refused_first",
]


async def check_c1_load_keeps_the_order_of_first_writing(subject: Subject) -> None:
    async with subject.opened() as at:
        store = at.checkpointer
        expect(await store.load("unknown") == {}, "load of an unknown workflow is not {}")
        holder = await claimed(store, "w")
        for key in ("second", "first"):
            await store.record(holder, key, key)
        await store.supply("w", "third", "third")
        await store.supply("another", "first", "another's")
        await store.record(holder, "second", "late")
        await store.supply("w", "first", "late")
        loaded = list((await store.load("w")).items())
        expected = [(key, key) for key in ("second", "first", "third")]
        expect(loaded == expected, f"load gave {loaded}, written were {expected}")


async def check_c2_history_tells_the_moment_of_the_winning_write(subject: Subject) -> None:
    async with subject.opened() as at:
        store = at.checkpointer
        expect(await store.history("unknown") == {}, "history of an unknown workflow is not {}")
        holder = await claimed(store, "w", LONG, LONG)
        moments = []
        for key in ("b", "a"):
            at.clock.advance(MINUTE)
            moments.append(at.clock.now())
            await store.record(holder, key, key)
        at.clock.advance(MINUTE)
        await store.record(holder, "b", "late")
        history = await store.history("w")
        told = {key: written.value for key, written in history.items()}
        loaded = await store.load("w")
        expect(list(told.items()) == list(loaded.items()), "history and load tell different things")
        for written, moment in zip(history.values(), moments, strict=True):
            expect(
                written.at.utcoffset() == timedelta(0), f"{written.at!r} is no aware moment in UTC"
            )
            off = abs(written.at - moment)
            expect(off < SECOND, f"history tells {written.at} for what was first written {moment}")


async def check_c9_only_the_newest_writes_and_the_first_value_stands(subject: Subject) -> None:
    async with subject.opened() as at:
        store = at.checkpointer
        outranked = await outranked_pass(store)
        for holder, who in (
            (outranked, "an outranked pass"),
            (Pass("w", outranked.token + 10**15), "a pass of a token that was never issued"),
        ):
            await expect_fenced(at, holder, who)
        expect(await store.load("w") == {}, "a refused write left a record behind")

        holder = await claimed(store, "v", LONG, LONG)
        expected = (
            ("first", "first", True),
            ("second", "first", False),
            ("first", "first", True),  # a tie
        )
        for value, stored, first in expected:
            recorded = await store.record(holder, "k", value)
            expect(
                (recorded.value, recorded.first) == (stored, first),
                f"recording {value!r} after 'first' answered {recorded}",
            )
        expect(await store.load("v") == {"k": "first"}, "a recorded key was overwritten")


async def check_c11_what_has_returned_is_durable(subject: Subject) -> None:
    async with subject.opened() as at:
        store = at.checkpointer

        async def expect_kept(call: str, key: str) -> None:
            async with subject.reopened(at.clock) as after:
                loaded = await after.checkpointer.load("w")
                expect(key in loaded, f"what {call} had acknowledged is gone after a crash")

        holder = await claimed(store, "w", LONG, LONG)
        await store.supply("w", "supplied", 1)
        await expect_kept("supply", "supplied")
        await store.record(holder, "recorded", 1)
        await expect_kept("record", "recorded")
        entry = await store.append("w", 1)
        await expect_kept("append", entry.key)
        if await at.co_commits():
            await store.transact(holder, "transacted", lambda _: 1)
            await expect_kept("transact", "transacted")
        await store.discard("w")
        async with subject.reopened(at.clock) as after:
            loaded = await after.checkpointer.load("w")
            expect(loaded == {}, f"what discard had removed is back after a crash: {loaded}")


async def check_c12_an_effect_runs_once_and_with_its_record(subject: Subject) -> None:
    async with subject.opened() as at:
        store, marks = at.checkpointer, subject.marks
        if not await at.co_commits():
            raise NotApplicable("the store commits no effects")
        runs: list[str] = []

        def effect(name: str, result: object) -> Callable[[object], object]:
            def run(handed: object) -> object:
                runs.append(name)
                if marks is not None:
                    marks.leave(handed, name)
                if isinstance(result, Exception):
                    raise result
                return result

            return run

        async def expect_marks(*names: str) -> None:
            if marks is not None:
                read = sorted(await marks.read(at.durable))
                expect(read == sorted(names), f"of the effects {read} were kept, not {list(names)}")

        holder = await claimed(store, "w", LONG, LONG)
        answers = [await store.transact(holder, "k", effect("once", ("a", 1)))]
        answers.append(await store.transact(holder, "k", effect("twice", "other")))
        await store.release(holder)
        holder = await claimed(store, "w", LONG, LONG)
        answers.append(await store.transact(holder, "k", effect("twice", "other")))
        expect(runs == ["once"], f"the effects of one step ran: {runs}")
        answers.append((await store.load("w"))["k"])
        expect(
            all(one == answers[-1] for one in answers), f"a transact answered, in turn, {answers}"
        )
        await expect_marks("once")

        failure = LookupError("the effect's own")
        try:
            await store.transact(holder, "fails", effect("failed", failure))
        except LookupError as error:
            expect(error is failure, f"the effect raised {failure!r}, its caller saw {error!r}")
        else:
            expect(False, "an effect's failure was not raised to its caller")
        unstorable = effect("unstorable", iter(()))
        await expect_refused(
            (TypeError, ValueError),
            store.transact(holder, "unstorable", unstorable),
            "a result that cannot be encoded is no TypeError or ValueError",
        )
        expect(list(await store.load("w")) == ["k"], "an effect that failed is recorded")
        await expect_marks("once")
        await store.transact(holder, "fails", effect("again", 1))
        expect(runs[-1] == "again", "an effect that failed is not tried again")
        await expect_marks("once", "again")

        await store.release(holder)
        await claimed(store, "w", LONG, LONG)
        await expect_refused(
            Fenced,
            store.transact(holder, "late", effect("fenced", 1)),
            "transact by an outranked pass is not Fenced",
        )
        expect("fenced" not in runs, "the effect ran before the fence was checked")


async def check_c13_supply_keeps_the_first_and_append_keeps_the_order(subject: Subject) -> None:
    async with subject.opened() as at:
        store = at.checkpointer
        await claimed(store, "w", LONG, LONG)  # somebody else's: no matter
        answers = [await store.supply("w", "k", value) for value in ("first", "second")]
        expect(answers == ["first", "first"], f"two supplies of one key answered {answers}")

        entries = [await store.append("w", number) for number in range(3)]
        await store.supply("w", inbox_key(10**6), "supplied")
        entries.append(await store.append("w", 3))
        together = await asyncio.gather(*(store.append("w", number) for number in range(4, 9)))
        keys = [entry.key for entry in entries]
        distinct = {*keys, *(entry.key for entry in together)}
        expect(len(distinct) == 9, "two messages were filed under one key")
        expect(all(key.startswith(INBOX) for key in distinct), f"{distinct} are no inbox keys")
        expect(keys == sorted(keys), f"messages appended in turn have the keys {keys}")
        expect(keys[-1] > inbox_key(10**6), "a message sorts before one the workflow held already")
        expect(
            min(entry.key for entry in together) > keys[-1], "later messages sort before earlier"
        )
        loaded = await store.load("w")
        filed = all(loaded.get(entry.key) == entry.value for entry in (*entries, *together))
        expect(filed, "a message is not where its entry says")


async def check_c16_every_value_crosses_the_codec_both_ways(subject: Subject) -> None:
    async with subject.opened() as at:
        store = at.checkpointer
        holder = await claimed(store, "w", LONG, LONG)

        def value() -> dict[str, object]:
            return {"list": [1, 2], "tuple": (1, 2), "none": None, "text": "é\0\U0001f600"}

        async def appended(value: object) -> object:
            return (await store.append("w", value)).value

        async def recorded(value: object) -> object:
            return (await store.record(holder, "recorded", value)).value

        calls: dict[str, Callable[[object], Awaitable[object]]] = {
            "supply": lambda value: store.supply("w", "supplied", value),
            "append": appended,
            "record": recorded,
        }
        if await at.co_commits():
            calls["transact"] = lambda value: store.transact(holder, "transacted", lambda _: value)
        for name, call in calls.items():
            given = value()
            answer = await call(given)
            given["changed"] = "by the caller"
            stored = list((await store.load("w")).values())[-1]
            expect(answer == stored, f"{name} answered {answer!r}, load gives {stored!r}")
            expect("changed" not in str(stored), f"{name} keeps the caller's own object")
            assert isinstance(stored, dict)
            stored["changed"] = "by a reader"
            again = list((await store.load("w")).values())[-1]
            expect("changed" not in str(again), "load hands out what the store keeps")


async def check_c18_the_inbox_space_is_the_stores(subject: Subject) -> None:
    async with subject.opened() as at:
        store = at.checkpointer
        runs: list[object] = []
        holder = await claimed(store, "w", LONG, LONG)
        refused: dict[str, Callable[[], Awaitable[object]]] = {
            "record": lambda: store.record(holder, inbox_key(7), "spoof"),
            "arrive": lambda: at.durable.arrive("w", inbox_key(7), "spoof"),
            "supply of a malformed key": lambda: store.supply("w", f"{INBOX}7", "spoof"),
            "supply of a key too far ahead": lambda: store.supply(
                "w", inbox_key(SUPPLIED_BEYOND), "spoof"
            ),
        }
        if await at.co_commits():
            refused["transact"] = lambda: store.transact(holder, inbox_key(7), runs.append)
        for name, call in refused.items():
            await expect_refused(ValueError, call(), f"{name} into the inbox space is allowed")
        expect(await store.load("w") == {}, "a refused key was written")
        expect(not runs, "the effect of a refused key ran")
        for position in (0, 7, SUPPLIED_BEYOND - 1):
            await store.supply("w", inbox_key(position), position)
        entry = await store.append("w", "next")
        expect(
            entry.key > inbox_key(SUPPLIED_BEYOND - 1),
            "a message sorts before a supplied one",
        )


async def check_c19_what_cannot_be_stored_is_refused_first(subject: Subject) -> None:
    async with subject.opened() as at:
        store = at.checkpointer
        runs: list[object] = []
        for workflow in ("", " ", "a\0b", "'; --", "%", "1", "01", "é", "e\u0301", "x" * 10_000):
            await store.supply(workflow, "id", workflow)
            loaded = await store.load(workflow)
            expect(loaded == {"id": workflow}, f"the workflow of id {workflow[:9]!r} is {loaded}")

        holder = await claimed(store, "w", LONG, MINUTE)
        lone, unstorable = "\ud800", iter(())
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "a key": lambda: store.record(holder, lone, 1),
            "a supplied key": lambda: store.supply("w", lone, 1),
            "an id": lambda: store.supply(lone, "k", 1),
            "an id, appended to,": lambda: store.append(lone, 1),
            "an id, claimed,": lambda: store.claim(lone, LONG, LONG),
            "an id, made ready,": lambda: at.scheduler.make_ready(lone),
            "a value": lambda: store.record(holder, "k", unstorable),
            "a supplied value": lambda: store.supply("w", "k", unstorable),
            "a message": lambda: store.append("w", unstorable),
        }
        if await at.co_commits():
            calls["a transacted key"] = lambda: store.transact(holder, lone, runs.append)
        for name, call in calls.items():
            await expect_refused(
                (TypeError, ValueError), call(), f"{name} that cannot be stored is not refused"
            )
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
