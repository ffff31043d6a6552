"""Child processes of a figure, which run `children.py`, and how to talk to them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

SCRIPT = Path(__file__).with_name("children.py")


class Child:
    """One asks it for an amount of what it does, and it answers with numbers.

    Nothing here has a time limit: the figure as a whole has one, and a child ends with it.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def ask(self, amount: float) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{amount}\n")
        self.process.stdin.flush()

    async def answer(self) -> dict[str, float]:
        """What it answers, next; `RuntimeError` if it ended instead."""
        assert self.process.stdout is not None
        line = await asyncio.to_thread(self.process.stdout.readline)
        if not line:
            raise RuntimeError(f"a child process ended with code {self.process.wait()}")
        answer: dict[str, float] = json.loads(line)
        return answer


@contextmanager
def started(part: str, path: Path) -> Iterator[Child]:
    """A child that plays `part` over a file; it is gone when the block is left."""
    command = [sys.executable, str(SCRIPT), part, str(path)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
    )
    with process:
        try:
            yield Child(process)
        finally:
            process.kill()


@contextmanager
def all_started(part: str, paths: list[Path]) -> Iterator[list[Child]]:
    """A child for each path."""
    with ExitStack() as stack:
        yield [stack.enter_context(started(part, path)) for path in paths]


async def all_ready(children: list[Child]) -> None:
    for child in children:
        assert await child.answer() == {}


async def asked(children: list[Child], amount: float) -> list[dict[str, float]]:
    """All of them asked at once; their answers."""
    for child in children:
        child.ask(amount)
    return [await child.answer() for child in children]
