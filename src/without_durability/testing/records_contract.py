"""The clauses of what is recorded: values, order, effects and the inbox, each as a check."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta

from ..interfaces import claimed
from ..signals import Fenced
from ..values import INBOX, Pass, Recorded, inbox_key, shown
from .subject import (
    LONG,
    MINUTE,
    NEVER_ISSUED,
    SECOND,
    UNSTORABLE,
    NotApplicable,
    Subject,
    expect,
    expect_fenced,
    expect_refused,
    outranked_pass,
    together,
)

__all__ = [
    "check_c1_load_keeps_the_order_of_first_writing",
    "check_c2_history_tells_the_moment_of_the_winning_write",
    "check_c9_only_the_newest_writes_and_the_first_value_stands",
    "check_c11_what_has_returned_is_durable",
    "check_c12_an_effect_runs_once_and_with_its_record",
    "check_c13_supply_keeps_the_first_and_append_keeps_the_order",
    "check_c16_every_value_crosses_the_codec_both_ways",
]

MANY = 150
"""More records than a store that pages would give at once."""

LONG_TEXT = "x" * 70_000


async def check_c1_load_keeps_the_order_of_first_writing(subject: Subject) -> None:
    """C1: every record in the order its key was first written; a losing write moves nothing."""
    async with subject.opened() as at:
        store = at.checkpointer
        expect(await store.load("unknown") == {}, "load of an unknown workflow is not {}")
        holder = await claimed(store, "w", LONG, LONG)
        written: dict[str, object] = {"second": "second", "first": "first"}
        for key in written:
            await store.record(holder, key, key)
        message = await store.append("w", "message")
        at.clock.advance(-MINUTE)
        await store.supply("w", "third", "third")
        written |= {message.key: "message", "third": "third"}
        for name, write in (await at.writes("transacted")).items():
            if name == "transact":
                written["transacted"] = await write(holder)
        await store.supply("another", "first", "another's")
        await store.record(holder, "second", "late")
        await store.supply("w", "first", "late")
        for write in (await at.writes("first")).values():
            await write(holder)
        await store.supply("w", "nothing", None)
        written["nothing"] = None
        loaded = list((await store.load("w")).items())
        expect(loaded == [*written.items()], f"load gave {loaded}, written were {written}")
        for number in range(MANY):
            await store.supply("many", f"{number}", number)
        count = len(await store.load("many"))
        expect(count == MANY, f"of {MANY} records load gave {count}")


async def check_c2_history_tells_the_moment_of_the_winning_write(subject: Subject) -> None:
    """C2: as `load`, each value with the store's aware UTC moment of the winning write."""
    async with subject.opened() as at:
        store = at.checkpointer
        expect(await store.history("unknown") == {}, "history of an unknown workflow is not {}")
        holder = await claimed(store, "w", LONG, LONG)
        writes: dict[str, Callable[[], Awaitable[object]]] = {
            "b": lambda: store.record(holder, "b", "b"),
            "a": lambda: store.record(holder, "a", "a"),
            "supplied": lambda: store.supply("w", "supplied", 1),
            "a message": lambda: store.append("w", 1),
        }
        if await at.co_commits():
            writes["transacted"] = lambda: store.transact(holder, "transacted", lambda _: 1)
        moments = []
        for write in writes.values():
            at.clock.advance(SECOND)
            moments.append(at.clock.now())
            await write()
        at.clock.advance(MINUTE)
        for key, write in writes.items():
            if key != "a message":
                await write()
        await store.record(holder, "b", "late")
        history = await store.history("w")
        told = {key: written.value for key, written in history.items()}
        loaded = await store.load("w")
        expect(list(told.items()) == list(loaded.items()), "history and load tell different things")
        for key, written, moment in zip(writes, history.values(), moments, strict=True):
            expect(
                written.at.utcoffset() == timedelta(0), f"{written.at!r} is no aware moment in UTC"
            )
            off = abs(written.at - moment)
            expect(off < SECOND, f"history tells {written.at} for {key}, first written {moment}")


async def check_c9_only_the_newest_writes_and_the_first_value_stands(subject: Subject) -> None:
    """C9: any token but the newest is `Fenced`, and a recorded key keeps its first value."""
    async with subject.opened() as at:
        store = at.checkpointer
        outranked = await outranked_pass(store)
        for holder, who in (
            (outranked, "an outranked pass"),
            (Pass("w", outranked.token + NEVER_ISSUED), "a pass of a token that was never issued"),
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
        pairs: tuple[tuple[object, object], ...] = (
            (None, 0),
            (False, None),
            ("", 1),
            ([], "x"),
            (1, True),
        )
        for earlier, other in pairs:
            key = repr(earlier)
            await store.record(holder, key, earlier)
            recorded = await store.record(holder, key, other)
            expect(
                (repr(recorded.value), recorded.first) == (key, False),
                f"recording {other!r} after {earlier!r} answered {recorded}",
            )
        answers = await together(*(store.record(holder, "race", n) for n in range(9)))
        values, winners = {one.value for one in answers}, sum(one.first for one in answers)
        expect(
            (len(values), winners) == (1, 1),
            f"of nine records of one key at once {winners} came first, and they answered {values}",
        )
        await store.supply("v", "supplied", "first")
        recorded = await store.record(holder, "supplied", "second")
        expect(
            (recorded.value, recorded.first) == ("first", False),
            f"recording 'second' after 'first' was supplied answered {recorded}",
        )

        at.clock.advance(2 * LONG)
        recorded = Recorded(None, first=False)
        with suppress(Fenced):
            recorded = await store.record(holder, "lapsed", 1)
        expect(recorded.first, "the newest pass, whose claim lapsed, does not write any more")
        for write in (await at.writes("step")).values():
            await write(holder)
        await claimed(store, "v", LONG, LONG)
        await expect_fenced(at, holder, "an outranked pass, of what it had recorded itself,")


async def check_c11_what_has_returned_is_durable(subject: Subject) -> None:
    """C11: what a write had acknowledged is there after a crash; needs `reopen`."""
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
        history = list((await store.history("w")).items())
        async with subject.reopened(at.clock) as after:
            kept = list((await after.checkpointer.history("w")).items())
            expect(kept == history, f"history was {history}, and {kept} after a crash")
        await store.discard("w")
        async with subject.reopened(at.clock) as after:
            loaded = await after.checkpointer.load("w")
            expect(loaded == {}, f"what discard had removed is back after a crash: {loaded}")


async def check_c12_an_effect_runs_once_and_with_its_record(subject: Subject) -> None:
    """C12: the fence, then the record, then the effect: once, with its record or not at all."""
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

        kept = ["once"]
        for name, result in (("none", None), ("false", False)):
            for _ in range(2):
                answer = await store.transact(holder, name, effect(name, result))
                expect(answer is result, f"a transact of {result} answered {answer!r}")
            kept.append(name)
            expect(runs == kept, f"the effects of a step, whose result is {result}, ran: {runs}")
        races = [store.transact(holder, "race", effect("race", n)) for n in range(5)]
        values = set(await together(*races))
        kept.append("race")
        expect(runs == kept, f"the effects of five transacts of one key at once ran: {runs}")
        expect(len(values) == 1, f"five transacts of one key at once answered {values}")
        await store.supply("w", "supplied", 1)
        await store.record(holder, "recorded", 1)
        for key in ("supplied", "recorded"):
            answer = await store.transact(holder, key, effect(key, 2))
            expect(answer == 1, f"a transact of a key {key} before answered {answer!r}")
        expect(runs == kept, f"the effect of a key that was recorded before ran: {runs}")
        await expect_marks(*kept)
        before = list(await store.load("w"))

        failure = LookupError("the effect's own")
        try:
            await store.transact(holder, "fails", effect("failed", failure))
        except LookupError as error:
            expect(error is failure, f"the effect raised {failure!r}, its caller saw {error!r}")
        else:
            expect(False, "an effect's failure was not raised to its caller")
        unstorable = effect("unstorable", UNSTORABLE)
        await expect_refused(
            (TypeError, ValueError),
            store.transact(holder, "unstorable", unstorable),
            "a result that cannot be encoded is no TypeError or ValueError",
        )
        expect(list(await store.load("w")) == before, "an effect that failed is recorded")
        await expect_marks(*kept)
        await store.transact(holder, "fails", effect("again", 1))
        expect(runs[-1] == "again", "an effect that failed is not tried again")
        await expect_marks(*kept, "again")

        await store.release(holder)
        await claimed(store, "w", LONG, LONG)
        await expect_refused(
            Fenced,
            store.transact(holder, "late", effect("fenced", 1)),
            "transact by an outranked pass is not Fenced",
        )
        expect("fenced" not in runs, "the effect ran before the fence was checked")


async def check_c13_supply_keeps_the_first_and_append_keeps_the_order(subject: Subject) -> None:
    """C13: `supply` keeps the first value; messages sort as they were appended."""
    async with subject.opened() as at:
        store = at.checkpointer
        await claimed(store, "w", LONG, LONG)  # somebody else's: no matter
        for key, first in (("k", "first"), ("none", None), ("empty", "")):
            answers = [await store.supply("w", key, value) for value in (first, "second")]
            expect(answers == [first, first], f"two supplies of one key answered {answers}")
        raced = set(await together(*(store.supply("w", "race", n) for n in range(9))))
        expect(len(raced) == 1, f"nine supplies of one key at once answered {raced}")
        holder = await claimed(store, "recorded", LONG, LONG)
        await store.record(holder, "k", "first")
        answer = await store.supply("recorded", "k", "second")
        expect(answer == "first", f"a supply of 'second' after a record answered {answer!r}")

        entries = [await store.append("w", number) for number in (0, 1, 1)]
        at.clock.advance(-MINUTE)
        entries.append(await store.append("w", 2))
        keys = [entry.key for entry in entries]
        expect(keys == sorted(keys), f"messages appended in turn have the keys {keys}")
        loaded = await store.load("w")
        filed = all(loaded.get(entry.key) == entry.value for entry in entries)
        expect(filed, "a message is not where its entry says")
        answer = await store.supply("w", keys[0], "spoof")
        expect(answer == 0, f"a supply over the message 0 answered {answer!r}")
        supplied = int(entries[-1].key.removeprefix(INBOX)) + 10**6
        await store.supply("w", inbox_key(supplied), "supplied")
        entries.append(await store.append("w", 3))
        at_once = await together(*(store.append("w", number) for number in range(4, 9)))
        keys.append(entries[-1].key)
        distinct = {*keys, *(entry.key for entry in at_once)}
        expect(len(distinct) == 10, "two messages were filed under one key")
        expect(all(key.startswith(INBOX) for key in distinct), f"{distinct} are no inbox keys")
        expect(
            keys[-1] > inbox_key(supplied), "a message sorts before one the workflow held already"
        )
        expect(min(entry.key for entry in at_once) > keys[-1], "later messages sort before earlier")
        loaded = await store.load("w")
        filed = all(loaded.get(entry.key) == entry.value for entry in (*entries, *at_once))
        expect(filed, "a message is not where its entry says")
        if subject.reopen is not None:
            async with subject.reopened(at.clock) as after:
                key = (await after.checkpointer.append("w", "after a restart")).key
                expect(key > max(distinct), "a message after a restart sorts before earlier ones")


async def check_c16_every_value_crosses_the_codec_both_ways(subject: Subject) -> None:
    """C16: what is answered, loaded and kept is what the codec makes of a value."""
    async with subject.opened() as at:
        store = at.checkpointer
        holder = await claimed(store, "w", LONG, LONG)

        def value() -> dict[str, object]:
            text = "é\0\U0001f600"
            numbers = [2**60 + 1, 1.5, 0.1, True, -(2**70)]
            return {
                "numbers": numbers,
                "tuple": (1, 2),
                "none": None,
                text: text,
                "long": LONG_TEXT,
            }

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
            expect(answer == stored, f"{name} answered {shown(answer)}, load gives {shown(stored)}")
            expect("changed" not in str(stored), f"{name} keeps the caller's own object")
            expect(len(str(stored)) > 70_000, f"{name} cuts a long value short")
            told = list((await store.history("w")).values())[-1].value
            hands: dict[str, object] = {name: answer, "load": stored, "history": told}
            hands[f"{name} of what is stored"] = await call("late") if name != "append" else {}
            for giver, given_out in hands.items():
                assert isinstance(given_out, dict)
                given_out["changed"] = "by a reader"
                again = list((await store.load("w")).values())[-1]
                expect("changed" not in str(again), f"{giver} hands out what the store keeps")
