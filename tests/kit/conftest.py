"""The stores that workflows die over."""

from __future__ import annotations

from typing import Any

import pytest

from kit.makes import memory, over_file


@pytest.fixture(params=["memory", "sqlite"])
def make(request: pytest.FixtureRequest) -> Any:
    return memory if request.param == "memory" else lambda clock: over_file(":memory:", clock)
