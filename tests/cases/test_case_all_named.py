"""Every case of the field has a test that bears its number."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
NAME = re.compile(r"^ *(?:async )?def test_((?:k\d+_)+)", re.MULTILINE)


@pytest.fixture(scope="module")
def named() -> set[str]:
    return {
        case
        for page in TESTS.rglob("test_*.py")
        for cases in NAME.findall(page.read_text(encoding="utf-8"))
        for case in cases.split("_")
    }


@pytest.mark.parametrize("case", [f"k{number}" for number in range(1, 48)])
def test_the_case_is_named_by_a_test(case: str, named: set[str]) -> None:
    assert case in named
