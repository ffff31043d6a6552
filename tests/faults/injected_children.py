"""A process of its own for what must not happen to the tests' own."""

from __future__ import annotations

from pathlib import Path

import pytest

from children import ended
from without_durability import Delivery, Pass

FOLDERS = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
CHILD = f"""
sys.path[:0] = {FOLDERS}
from importlib import import_module
import_module(arguments[0]).main(path, *arguments[1:])
"""


def child_of(
    module: str, path: Path, held: tuple[Pass, Delivery], *arguments: str
) -> dict[str, str]:
    """What the module's `main` says of each name, once every check of its own has held."""
    holder, delivery = held
    child = ended(CHILD, path, module, str(holder.token), delivery.receipt, *arguments, within=40)
    assert child.code == 0, child.err
    if child.out.startswith("skip: "):
        pytest.skip(child.out)
    return dict(line.split(" ", 1) for line in child.out.splitlines())
