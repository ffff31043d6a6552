"""What a pass is told about its right to run, as opposed to about its work."""

from __future__ import annotations

from typing import Any

from .values import Pass, shown


class Interruption(BaseException):
    """The base of everything that speaks about *this pass's right to run*.

    Outside `Exception`, so that a workflow's own `except Exception` never swallows one.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.args, dict(vars(self)))


class Contended(Interruption):
    """Another pass holds the workflow. `workflow` is its id where the raiser gave it."""

    def __init__(self, message: str = "", *, workflow: str | None = None) -> None:
        super().__init__(message)
        self.workflow = workflow


class Fenced(Interruption):
    """This pass was superseded and its write refused (C9).

    `workflow` and `token` are those of the refused pass where the raiser gave them.
    """

    def __init__(
        self, message: str = "", *, workflow: str | None = None, token: int | None = None
    ) -> None:
        super().__init__(message)
        self.workflow = workflow
        self.token = token


def fenced(holder: Pass) -> Fenced:
    """The refusal of a write by a pass that is not the newest (C9)."""
    return Fenced(
        f"the pass with token {shown(holder.token)} over workflow {shown(holder.workflow)} "
        "is not the newest: its write is refused",
        workflow=holder.workflow,
        token=holder.token,
    )


def _rebuilt(
    kind: type[Interruption], args: tuple[Any, ...], facts: dict[str, Any]
) -> Interruption:
    """An unpickled interruption: its facts come back without its constructor being asked."""
    error = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(facts)
    return error
