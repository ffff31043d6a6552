"""The contract kit: it certifies every store there is, and catches every store that breaks one."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import re
from collections import deque
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kit.makes import (
    Disk,
    Files,
    Kept,
    memory,
    memory_ledger,
    memory_marks,
    over_file,
    sqlite_marks,
)
from kit.saboteurs import SABOTEURS
from without_durability import (
    INBOX,
    Entry,
    MemoryCheckpointer,
    MemoryScheduler,
    Pass,
    SplitDurable,
    inbox_key,
    testing,
)
from without_durability.testing import (
    CHECKS,
    Certificate,
    Clock,
    NotApplicable,
    Subject,
    certify,
    certifying,
    scheduler_contract,
    subject,
)

CLAUSES = [
    *(f"C{number}" for number in range(1, 20)),
    *(f"S{number}" for number in range(1, 12)),
    *(f"D{number}" for number in range(1, 5)),
]
LEDGER = [f"L{number}" for number in range(1, 17)]
CLAUSES += LEDGER


def assert_certified(certificate: Certificate, *not_applicable: str) -> None:
    assert certificate.passed, str(certificate)
    assert [one.clause for one in certificate.verdicts] == CLAUSES
    left_out = [one.clause for one in certificate.verdicts if one.state == "not applicable"]
    assert left_out == list(not_applicable), str(certificate)


async def test_the_memory_stores_are_certified() -> None:
    assert_certified(await certify(memory, marks=memory_marks), "C11", *LEDGER)


async def test_the_memory_stores_are_certified_with_a_ledger() -> None:
    assert_certified(await certify(memory_ledger, marks=memory_marks), "C11")


async def test_a_file_is_certified(tmp_path: Path) -> None:
    files = Files(tmp_path)
    assert_certified(await certify(files.make, files.reopen, marks=sqlite_marks))


async def test_two_databases_on_one_file_are_certified(tmp_path: Path) -> None:
    files = Files(tmp_path)
    assert_certified(await certify(files.make_two, files.reopen))


async def test_a_store_in_memory_of_sqlite_is_certified() -> None:
    certificate = await certify(lambda clock: over_file(":memory:", clock), marks=sqlite_marks)
    assert_certified(certificate, "C11")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in memory answers soon, or never."""
    monkeypatch.setattr(subject, "_PATIENCE", 0.05)
    monkeypatch.setattr(scheduler_contract, "PATIENT", timedelta(seconds=0.2))


def sabotaged(store: type) -> Any:
    @asynccontextmanager
    async def make(clock: Clock):
        checkpointer, scheduler, durable = MemoryCheckpointer, MemoryScheduler, SplitDurable
        if issubclass(store, MemoryCheckpointer):
            checkpointer = store
        elif issubclass(store, MemoryScheduler):
            scheduler = store
        else:
            durable = store
        yield durable(
            checkpointer(clock=clock.seconds, now=clock.now), scheduler(clock=clock.seconds)
        )

    return make


@pytest.mark.parametrize(
    ("clause", "store", "saying"),
    SABOTEURS,
    ids=[f"{clause}-{store.__name__}" for clause, store, _ in SABOTEURS],
)
@pytest.mark.usefixtures("impatient")
async def test_a_saboteur_is_caught_by_the_clause_it_breaks(
    monkeypatch: pytest.MonkeyPatch, clause: str, store: type, saying: str
) -> None:
    monkeypatch.setattr(certifying, "HANG", 0.5 if "did not end" in saying else 15)
    verdict = await certifying._verdict(
        clause, CHECKS[clause], Subject(sabotaged(store), marks=memory_marks)
    )
    assert verdict.state == "failed"
    assert saying in verdict.why, "it was caught for another reason"


LOST = {
    "C11": ["supply", "record", "append", "transact", "discard"],
    "S1": ["make_ready"],
    "D4": ["make_ready"],
}


@pytest.mark.parametrize(
    ("clause", "lost"), [(clause, call) for clause, calls in LOST.items() for call in calls]
)
@pytest.mark.usefixtures("impatient")
async def test_a_call_that_is_not_on_the_disk_when_it_returns_is_caught(
    clause: str, lost: str
) -> None:
    kept, losing = Disk(), Disk(lost)
    await CHECKS[clause](Subject(kept.make, kept.reopen))
    with pytest.raises(AssertionError):
        await CHECKS[clause](Subject(losing.make, losing.reopen))


def no_live_claims(call: str, kept: Kept) -> None:
    for workflow, claim in kept.claims.items():
        kept.claims[workflow] = dataclasses.replace(claim, alive_until=0.0)


def no_order(call: str, kept: Kept) -> None:
    kept.hashes = {one: dict(sorted(keys.items())) for one, keys in kept.hashes.items()}


def no_moments(call: str, kept: Kept) -> None:
    for records in kept.hashes.values():
        for key, stored in records.items():
            records[key] = dataclasses.replace(stored, at=stored.at.replace(hour=5))


def nothing_that_wake_due_moved(call: str, kept: Kept) -> None:
    if call == "wake_due":
        kept.queue.clear()


def everything_that_was_ever_ready() -> Any:
    ever: set[str] = set()

    def kept_ready(call: str, kept: Kept) -> None:
        ever.update({"w"} & {*kept.queue})
        kept.queue = deque(ever)

    return kept_ready


def everything_that_was_ever_recorded() -> Any:
    ever: dict[str, Any] = {}

    def kept_recorded(call: str, kept: Kept) -> None:
        ever.update(copy.deepcopy({"w": kept.hashes["w"]} if "w" in kept.hashes else {}))
        kept.hashes = ever

    return kept_recorded


def no_messages(call: str, kept: Kept) -> None:
    for records in kept.hashes.values():
        for key in [key for key in records if key.startswith(INBOX)]:
            del records[key]


def no_wakeup_of(prefix: str) -> Any:
    def none_kept(call: str, kept: Kept) -> None:
        if any(key.startswith(prefix) for key in kept.hashes.get("w", {})):
            kept.queue.clear()

    return none_kept


SPOILT = [
    ("C3", no_live_claims, "a claim ends with the process"),
    ("C11", no_order, "after a crash"),
    ("C11", no_moments, "after a crash"),
    ("S1", lambda call, kept: kept.queue.clear(), "was ready is lost in a crash"),
    ("S1", lambda call, kept: kept.outstanding.clear(), "out with a worker is lost in a crash"),
    ("S1", lambda call, kept: kept.sleeping.clear(), "slept is lost in a crash"),
    ("S7", nothing_that_wake_due_moved, "was not delivered"),
    ("D4", lambda call, kept: kept.hashes.clear(), "of what had arrived there is {} after"),
    ("D4", no_wakeup_of("k"), "was not delivered"),
    ("D4", everything_that_was_ever_recorded(), "of what was deleted there is {'k': 1} after"),
    ("D4", everything_that_was_ever_ready(), "it was deleted before the crash"),
    ("D4", no_messages, "of a message there is {} after"),
    ("D4", no_wakeup_of(INBOX), "was not delivered"),
]


@pytest.mark.parametrize(("clause", "spoil", "saying"), SPOILT)
@pytest.mark.usefixtures("impatient")
async def test_what_a_crash_leaves_spoilt_is_caught(clause: str, spoil: Any, saying: str) -> None:
    disk = Disk(spoil=spoil)
    with pytest.raises(AssertionError, match=re.escape(saying)):
        await CHECKS[clause](Subject(disk.make, disk.reopen))


async def test_a_fence_against_ones_own_passes_alone_is_caught() -> None:
    class FencesItsOwn(MemoryCheckpointer):
        async def claim(self, workflow, budget, alive):
            holder = await super().claim(workflow, budget, alive)
            self.data[repr(holder)] = True
            return holder

        async def record(self, holder, key, value):
            if repr(holder) not in self.data:  # another process granted it: who knows
                holder = Pass(holder.workflow, self.claims[holder.workflow].token)
            return await super().record(holder, key, value)

    disk = Disk(checkpointer=FencesItsOwn)
    with pytest.raises(
        AssertionError, match="from before a restart, outranked since, is not Fenced"
    ):
        await CHECKS["C3"](Subject(disk.make, disk.reopen))


async def test_messages_numbered_from_memory_are_caught() -> None:
    class Counted(MemoryCheckpointer):
        async def append(self, workflow, value):
            if "counting" in self.data:
                return await super().append(workflow, value)
            return Entry(inbox_key(1), value)

        async def supply(self, workflow, key, value):
            self.data["counting"] = True
            return await super().supply(workflow, key, value)

    disk = Disk(checkpointer=Counted)
    with pytest.raises(AssertionError, match="after a restart sorts before"):
        await CHECKS["C13"](Subject(disk.make, disk.reopen))


async def test_receipts_that_start_afresh_after_a_restart_are_caught() -> None:
    disk = Disk(receipts=range(9))
    with pytest.raises(AssertionError, match="got a receipt given before"):
        await CHECKS["S8"](Subject(disk.make, disk.reopen))


async def test_tokens_that_an_older_copy_would_repeat_are_caught() -> None:
    disk = Disk()
    certificate = await certify(disk.make, disk.reopen)
    (broken,) = certificate.failed
    assert broken.clause == "C3"
    assert "does not follow the time" in broken.why


def test_every_clause_has_a_check_and_a_saboteur() -> None:
    assert list(CHECKS) == CLAUSES
    assert {clause for clause, _, _ in SABOTEURS} | LOST.keys() == set(CLAUSES)
    for clause, check in CHECKS.items():
        assert check.__name__.startswith(f"check_{clause.lower()}_")
        assert getattr(testing, check.__name__) is check


async def test_a_store_that_commits_no_effects_is_certified_without_them() -> None:
    class NoEffects(MemoryCheckpointer):
        async def transact(self, holder, key, effect):
            raise NotImplementedError

    certificate = await certify(sabotaged(NoEffects))
    assert_certified(certificate, "C11", "C12", *LEDGER)


async def test_a_check_that_hangs_has_failed_and_the_others_go_on(monkeypatch) -> None:
    class NeverLoads(MemoryCheckpointer):
        async def load(self, workflow):
            await asyncio.Event().wait()

    monkeypatch.setattr(certifying, "HANG", 0.05)
    certificate = await certify(sabotaged(NeverLoads))
    assert certificate["C1"].why == "it did not end within 0.05 s"
    assert certificate["C15"].state == "passed"


async def test_whatever_a_store_raises_is_a_verdict() -> None:
    class Broken(MemoryCheckpointer):
        async def load(self, workflow):
            raise ZeroDivisionError("of its own")

    certificate = await certify(sabotaged(Broken))
    assert not certificate.passed
    assert certificate["C1"].state == "failed"
    assert "ZeroDivisionError('of its own')" in certificate["C1"].why


async def test_a_certificate_reads_as_a_line_for_each_clause() -> None:
    class Unsorted(MemoryCheckpointer):
        async def load(self, workflow):
            return dict(reversed((await super().load(workflow)).items()))

    lines = str(await certify(sabotaged(Unsorted))).splitlines()
    assert lines[0] == "C1  failed          load keeps the order of first writing"
    assert lines[1].startswith("    load gave [")
    assert "D4  passed          what is half done can be asked for again" in lines


async def test_a_check_can_be_run_by_itself() -> None:
    subject = Subject(memory)
    await testing.check_c15_release_frees_at_once_and_keeps_the_token(subject)
    with pytest.raises(NotApplicable):
        await testing.check_c11_what_has_returned_is_durable(subject)


async def test_a_clause_there_is_not_has_no_verdict() -> None:
    with pytest.raises(KeyError):
        Certificate(())["C99"]
