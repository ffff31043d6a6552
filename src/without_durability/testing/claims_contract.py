"""The clauses of the claim: who may write, for how long, and who may not, each as a check."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

from ..interfaces import claimed
from ..signals import Fenced
from ..values import Entry, Pass
from .subject import (
    LONG,
    MINUTE,
    NEVER_ISSUED,
    NOW,
    SECOND,
    Opened,
    Subject,
    Write,
    cancelled_in_every_turn,
    eventually,
    expect,
    expect_fenced,
    expect_never_claimed,
    outranked_pass,
    together,
)

__all__ = [
    "check_c3_one_live_pass_and_tokens_that_rise",
    "check_c4_a_claim_lapses_at_the_earlier_of_silence_and_budget",
    "check_c5_extend_grants_from_now_and_never_less",
    "check_c6_renew_never_moves_the_budget",
    "check_c7_who_is_not_the_newest_hears_no",
    "check_c8_no_sign_of_life_outlasts_budget_or_release",
    "check_c10_a_refused_write_keeps_nobody_alive",
    "check_c14_discard_empties_and_fences",
    "check_c15_release_frees_at_once_and_keeps_the_token",
    "check_c17_what_a_cancelled_caller_was_granted_is_given_back",
]


async def check_c3_one_live_pass_and_tokens_that_rise(subject: Subject) -> None:
    """C3: one claim at a time; tokens rise across releases, lapses, discards, restarts."""
    async with subject.opened() as at:
        store = at.checkpointer
        many = await together(*(store.claim("w", LONG, MINUTE) for _ in range(10)))
        granted = [one for one in many if one is not None]
        expect(len(granted) == 1, f"{len(granted)} of ten claims at once were granted")
        expect(await at.is_free("another"), "a claim keeps another workflow from being claimed")
        tokens = [granted[0].token]

        async def claim_again(after: str) -> Pass:
            holder = await store.claim("w", LONG, MINUTE)
            expect(holder is not None, f"the workflow cannot be claimed after {after}")
            assert holder is not None
            expect(holder.token > tokens[-1], f"the token did not rise after {after}")
            tokens.append(holder.token)
            return holder

        at.clock.advance(MINUTE + SECOND)
        holder = await claim_again("its claim lapsed")
        await store.release(holder)
        at.clock.advance(-MINUTE)
        holder = await claim_again("a release, with the clock set back")
        await store.record(holder, "k", 1)
        await store.discard("w")
        holder = await claim_again("a discard")
        if subject.reopen is not None:
            async with subject.reopened(at.clock) as later:
                store = later.checkpointer
                free = await later.is_free("w")
                expect(
                    not free, "a claim ends with the process that granted it, not when it lapses"
                )
                at.clock.advance(LONG)
                token = (await claim_again("a restart")).token
                await expect_fenced(later, holder, "a pass from before a restart, outranked since,")
                milliseconds = at.clock.seconds() * 1000 - 1
                expect(
                    token >= milliseconds,
                    f"token {token} does not follow the time: an older copy, restored, repeats it",
                )


async def check_c4_a_claim_lapses_at_the_earlier_of_silence_and_budget(subject: Subject) -> None:
    """C4: a claim ends by `alive` of silence, which five calls break, or by its budget."""
    async with subject.opened() as at:
        store = at.checkpointer
        for name, budget, alive in (("silence", LONG, MINUTE), ("its budget", MINUTE, LONG)):
            await claimed(store, name, budget, alive)
            at.clock.advance(MINUTE - SECOND)
            expect(not await at.is_free(name), f"a claim that {name} should end ended before")
            at.clock.advance(2 * SECOND)
            expect(await at.is_free(name), f"a claim that {name} should end did not")
        writes = await at.writes()
        signs: dict[str, Write] = {
            "extend": lambda holder: store.extend(holder, LONG, MINUTE),
            "renew": lambda holder: store.renew(holder, MINUTE),
            **writes,
            **{f"{name} of a recorded key": _losing(at, write) for name, write in writes.items()},
        }
        for name, sign in signs.items():
            holder = await claimed(store, name, LONG, MINUTE)
            at.clock.advance(40 * SECOND)
            await store.claim(name, SECOND, SECOND)  # refused, and so it changes nothing
            await sign(holder)
            at.clock.advance(40 * SECOND)
            expect(not await at.is_free(name), f"{name} is no sign of life")
            at.clock.advance(21 * SECOND)
            expect(await at.is_free(name), f"{name} is worth more than what the claim was given")
        for name, call in _others_calls(at).items():
            await claimed(store, name, LONG, MINUTE)
            at.clock.advance(40 * SECOND)
            await call(name)
            at.clock.advance(21 * SECOND)
            expect(await at.is_free(name), f"{name}, which anybody may call, kept a claim alive")


async def check_c5_extend_grants_from_now_and_never_less(subject: Subject) -> None:
    """C5: an extension grants its budget from now, never less than was granted before."""
    async with subject.opened() as at:
        store = at.checkpointer
        holder = await claimed(store, "more", MINUTE, LONG)
        at.clock.advance(30 * SECOND)
        expect(await store.extend(holder, 3 * MINUTE, LONG), "the holder was refused an extension")
        at.clock.advance(2 * MINUTE + 50 * SECOND)
        expect(not await at.is_free("more"), "an extension grants less than its budget from now")
        at.clock.advance(20 * SECOND)
        expect(await at.is_free("more"), "an extension grants more than its budget from now")

        holder = await claimed(store, "less", 5 * MINUTE, LONG)
        await store.extend(holder, MINUTE, LONG)
        at.clock.advance(2 * MINUTE)
        renewed = await store.renew(holder, LONG)
        expect(renewed, "an extension brought a granted budget forward: no renewal after it")
        at.clock.advance(2 * MINUTE)
        expect(not await at.is_free("less"), "an extension brought a granted budget forward")

        holder = await claimed(store, "alive", LONG, MINUTE)
        await store.extend(holder, LONG, 3 * MINUTE)
        at.clock.advance(2 * MINUTE)
        expect(not await at.is_free("alive"), "an extension is no sign of life worth `alive`")
        at.clock.advance(2 * MINUTE)
        expect(await at.is_free("alive"), "an extension outlives the silence it was given")

        for name, budget in (("lapsed", MINUTE), ("silent", LONG)):
            holder = await claimed(store, name, budget, MINUTE)
            at.clock.advance(2 * MINUTE)
            expect(
                await store.extend(holder, LONG, LONG),
                f"a {name} claim that nobody took was refused an extension",
            )
            expect(not await at.is_free(name), f"an extension of a {name} claim grants nothing")


async def check_c6_renew_never_moves_the_budget(subject: Subject) -> None:
    """C6: a renewal is a sign of life worth `alive`, moves no budget, and is refused after it."""
    async with subject.opened() as at:
        store = at.checkpointer
        holder = await claimed(store, "w", 2 * MINUTE, MINUTE)
        for _ in range(2):
            at.clock.advance(50 * SECOND)
            expect(await store.renew(holder, MINUTE), "the holder was refused a renewal")
        at.clock.advance(15 * SECOND)
        expect(not await at.is_free("w"), "a renewal is no sign of life worth `alive`")
        at.clock.advance(10 * SECOND)
        expect(not await store.renew(holder, MINUTE), "a renewal after the budget was granted")
        expect(await at.is_free("w"), "a renewal moved the budget")

        holder = await claimed(store, "longer", LONG, MINUTE)
        await store.renew(holder, 3 * MINUTE)
        at.clock.advance(2 * MINUTE)
        expect(not await at.is_free("longer"), "a renewal is worth less than its `alive`")

        holder = await claimed(store, "silent", LONG, MINUTE)
        at.clock.advance(2 * MINUTE)
        expect(
            await store.renew(holder, MINUTE),
            "a silent claim within its budget, that nobody took, was refused a renewal",
        )
        expect(not await at.is_free("silent"), "a renewal of a silent claim keeps nothing")


async def check_c7_who_is_not_the_newest_hears_no(subject: Subject) -> None:
    """C7: a pass that is not the newest is neither extended nor renewed, and is `Fenced`."""
    async with subject.opened() as at:
        store = at.checkpointer
        outranked = await outranked_pass(store)
        others = (
            (outranked, "an outranked pass"),
            (Pass("w", outranked.token + NEVER_ISSUED), "a pass of a token that was never issued"),
            (Pass("never claimed", 1), "an unknown pass"),
        )
        for since in ("", ", once the newest one's claim lapsed,"):
            for holder, who in others:
                expect(not await store.extend(holder, LONG, LONG), f"{who}{since} was extended")
                expect(not await store.renew(holder, LONG), f"{who}{since} was renewed")
                await expect_fenced(at, holder, f"{who}{since}")
                await store.release(holder)
            at.clock.advance(2 * LONG)


async def check_c8_no_sign_of_life_outlasts_budget_or_release(subject: Subject) -> None:
    """C8: nothing carries a claim past its budget, and nothing takes back a released one."""
    async with subject.opened() as at:
        store = at.checkpointer
        signs = {"renew": lambda holder: store.renew(holder, LONG), **await at.writes()}
        for name, sign in signs.items():
            holder = await claimed(store, f"budget and {name}", MINUTE, MINUTE)
            at.clock.advance(50 * SECOND)
            await sign(holder)
            at.clock.advance(20 * SECOND)
            expect(await at.is_free(holder.workflow), f"{name} carried a claim past its budget")
        for name, sign in await _with_extensions(at):
            holder = await claimed(store, f"release and {name}", LONG, LONG)
            await store.release(holder)
            try:
                answer = await sign(holder)
            except Fenced:
                answer = None
            if name in ("extend", "renew"):
                expect(answer is False, f"{name} after one's own release was granted")
            extended = await store.extend(holder, LONG, LONG)
            expect(not extended, f"{name} took a released claim back: it is extended")
            expect(await at.is_free(holder.workflow), f"{name} took a released claim back")


async def check_c10_a_refused_write_keeps_nobody_alive(subject: Subject) -> None:
    """C10: what is refused to an outranked pass is no sign of life of the newest."""
    async with subject.opened() as at:
        store = at.checkpointer
        for name, sign in await _with_extensions(at):
            old = await claimed(store, name, LONG, LONG)
            await store.release(old)
            await claimed(store, name, LONG, MINUTE)
            at.clock.advance(40 * SECOND)
            with suppress(Fenced):
                await sign(old)
            at.clock.advance(40 * SECOND)
            expect(
                await at.is_free(name), f"{name} by an outranked pass kept the newer one's claim"
            )


async def check_c14_discard_empties_and_fences(subject: Subject) -> None:
    """C14: a discard removes and counts one workflow's records, and fences its pass."""
    async with subject.opened() as at:
        store = at.checkpointer
        others = ("another", "w2", "w:2", "W", "", "%")
        holder = await claimed(store, "w", LONG, LONG)
        await store.record(holder, "k", 1)
        await store.append("w", "message")
        for workflow in ("w", *others):
            await store.supply(workflow, "s", 1)
        count = await store.discard("w")
        expect(count == 3, f"discard of three records answered {count}")
        expect(await store.load("w") == {}, "discard left records behind")
        await _expect_outranked(at, holder, "the pass whose workflow was discarded")
        expect(await at.is_free("w"), "a discarded workflow cannot be claimed at once")
        for workflow in others:
            kept = await store.load(workflow)
            expect(kept == {"s": 1}, f"discard of 'w' left {kept} of workflow {workflow!r}")
        expect(await store.discard("never claimed") == 0, "discard of nothing counts something")
        await expect_never_claimed(at, "never claimed")
        await store.discard("%")
        expect(await store.load("w2") == {"s": 1}, "discard of '%' took its id for a pattern")

        stored = await store.supply("w", "k", 2)
        loaded = await store.load("w")
        expect(
            (stored, loaded) == (2, {"k": 2}),
            f"after a discard a supply of 2 answered {stored}, and load gives {loaded}",
        )
        for state in ("holding", "released", "lapsed"):
            holder = await claimed(store, state, LONG, MINUTE)
            if state == "released":
                await store.release(holder)
            at.clock.advance(NOW if state == "holding" else 2 * MINUTE)
            count = await store.discard(state)
            expect(count == 0, f"discard of no records answered {count}")
            await _expect_outranked(at, holder, f"a {state} pass without records, since discarded,")


async def check_c15_release_frees_at_once_and_keeps_the_token(subject: Subject) -> None:
    """C15: a release frees at once, keeps the token, and is nothing when it is not the newest's."""
    async with subject.opened() as at:
        store = at.checkpointer
        old = await claimed(store, "w", LONG, LONG)
        await store.release(old)
        newer = await store.claim("w", LONG, LONG)
        expect(newer is not None, "a released workflow cannot be claimed at once")
        assert newer is not None
        expect(newer.token > old.token, "a release forgot the token")
        await store.release(old)
        expect(not await at.is_free("w"), "a release by an outranked pass freed the newer one's")
        await store.release(Pass("w", newer.token + NEVER_ISSUED))
        expect(
            not await at.is_free("w"), "a release by a token never issued freed the newest one's"
        )


async def check_c17_what_a_cancelled_caller_was_granted_is_given_back(subject: Subject) -> None:
    """C17: a claim nobody heard of is free again; a cancelled write is whole or not there."""
    async with subject.opened() as at:
        store, marks = at.checkpointer, subject.marks

        async def claim_is_back(workflow: str, holder: Pass | None) -> None:
            if holder is not None:
                await store.release(holder)
            again = await eventually(lambda: store.claim(workflow, LONG, LONG))
            expect(again is not None, f"{workflow} keeps what nobody heard of")

        await cancelled_in_every_turn(
            "a claim", lambda workflow: store.claim(workflow, LONG, LONG), claim_is_back
        )
        await claimed(store, "held", LONG, LONG)

        async def still_held(_: str, __: object) -> None:
            expect(not await at.is_free("held"), "a refused claim, cancelled, freed the holder's")

        await cancelled_in_every_turn(
            "a refused claim", lambda _: store.claim("held", LONG, LONG), still_held
        )

        async def whole_or_nothing(workflow: str, entry: Entry | None) -> None:
            later = await store.append(workflow, "later")
            values = [*(await store.load(workflow)).values()]
            expect(values in (["later"], ["message", "later"]), f"{workflow} left {values}")
            expect(entry is None or entry.key < later.key, f"{workflow} lost its place")

        await cancelled_in_every_turn(
            "an append", lambda workflow: store.append(workflow, "message"), whole_or_nothing
        )
        if marks is None or not await at.co_commits():
            return

        async def marked(workflow: str) -> object:
            holder = await claimed(store, workflow, LONG, LONG)
            return await store.transact(holder, "k", lambda handed: marks.leave(handed, workflow))

        async def both_or_neither(workflow: str, _: object) -> None:
            await store.supply(workflow, "later", 1)  # whatever was under way is over after it
            recorded = "k" in await store.load(workflow)
            kept = workflow in await marks.read(at.durable)
            expect(recorded == kept, f"{workflow}: recorded {recorded}, effect {kept}")

        await cancelled_in_every_turn("a transact", marked, both_or_neither)


async def _with_extensions(at: Opened) -> list[tuple[str, Write]]:
    """Every sign of life there is."""
    store = at.checkpointer
    return [
        ("extend", lambda holder: store.extend(holder, LONG, LONG)),
        ("renew", lambda holder: store.renew(holder, LONG)),
        *(await at.writes()).items(),
    ]


def _losing(at: Opened, write: Write) -> Write:
    """The write, where somebody supplied its key before."""

    async def lost(holder: Pass) -> object:
        await at.checkpointer.supply(holder.workflow, "step", "supplied")
        return await write(holder)

    return lost


def _others_calls(at: Opened) -> dict[str, Callable[[str], Awaitable[object]]]:
    """What is no sign of life, as it needs no claim."""
    store = at.checkpointer
    return {
        "load": store.load,
        "history": store.history,
        "supply": lambda workflow: store.supply(workflow, "k", 1),
        "append": lambda workflow: store.append(workflow, 1),
        "a refused claim": lambda workflow: store.claim(workflow, LONG, LONG),
    }


async def _expect_outranked(at: Opened, holder: Pass, who: str) -> None:
    store = at.checkpointer
    expect(not await store.extend(holder, LONG, LONG), f"{who} was extended")
    expect(not await store.renew(holder, LONG), f"{who} was renewed")
    await expect_fenced(at, holder, who)
