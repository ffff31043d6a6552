"""What a user's type checker is promised of the test kit; pytest runs it as well."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import assert_type

from without_durability import (
    Durable,
    MemoryCheckpointer,
    MemoryEffect,
    MemoryScheduler,
    Run,
    SplitDurable,
)
from without_durability.testing import (
    CHECKS,
    Certificate,
    Check,
    Clock,
    CrashReport,
    Make,
    Marks,
    Subject,
    Verdict,
    certify,
    check_c9_only_the_newest_writes_and_the_first_value_stands,
    crash_everywhere,
)


@asynccontextmanager
async def make(clock: Clock) -> AsyncIterator[SplitDurable[MemoryEffect]]:
    yield SplitDurable(
        MemoryCheckpointer(clock=clock.seconds, now=clock.now),
        MemoryScheduler(clock=clock.seconds),
    )


async def marks(durable: Durable[MemoryEffect]) -> list[str]:
    return []


async def zero() -> int:
    return 0


def as_int(recorded: object) -> int:
    assert isinstance(recorded, int)
    return recorded


async def body(run: Run[MemoryEffect]) -> int:
    stored = await run.step("zero", zero, as_int)
    return stored + await run.transact("one", lambda data: 1, as_int)


async def agnostic(run: Run) -> int:
    return await run.step("zero", zero, as_int)


async def test_a_certificate_is_typed() -> None:
    factory: Make = make
    certificate = await certify(factory)
    assert_type(certificate, Certificate)
    assert_type(certificate.passed, bool)
    assert_type(certificate.failed, tuple[Verdict, ...])
    assert_type(certificate["C9"], Verdict)
    assert certificate.passed, certificate
    check: Check = check_c9_only_the_newest_writes_and_the_first_value_stands
    assert CHECKS["C9"] is check
    await check(Subject(make, marks=Marks(lambda handed, mark: None, marks)))


async def test_a_crash_report_is_typed() -> None:
    report = await crash_everywhere(body, make, answers={"a": 1}, messages=["m"], passes=9)
    assert_type(report, CrashReport)
    assert_type(report.at_least_once, tuple[str, ...])
    assert (report.result, report.equal) == (1, True)
    assert (await crash_everywhere(agnostic, make)).equal
