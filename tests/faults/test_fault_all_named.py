"""`docs/faults.md` and the tests of this folder name each other, and nothing that is not there."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs/faults.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`(test_\w+)`", PAGE))
ROWS = [line for line in PAGE.splitlines() if re.match(r"\| (?!---)", line)]


def defined(pages: str) -> set[str]:
    return {
        name
        for page in TESTS.rglob(pages)
        for name in re.findall(r"^(?:async )?def (test_\w+)", page.read_text("utf-8"), re.MULTILINE)
    }


def test_every_test_that_the_page_of_faults_names_exists() -> None:
    assert NAMED - defined("test_*.py") == set()


def test_every_fault_test_is_named_on_the_page_of_faults() -> None:
    tests = {name for name in defined("faults/test_fault_*.py") if name.startswith("test_fault_")}
    assert len(tests) > 38
    assert tests - NAMED == set()


def test_every_row_on_the_page_of_faults_names_its_test() -> None:
    rows = [row for row in ROWS if not row.startswith("| What happens")]
    assert len(rows) >= 38
    assert [row for row in rows if "`test_fault_" not in row] == []
