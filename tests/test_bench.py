"""The bench runs: nothing here looks at a figure's value."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).with_name("bench")

FIGURES = {
    "record-alone": {"rate": (0.5, 0.58)},
    "record-20": {"rate": (3, 4.3)},
    "record-200": {"rate": (5, 8)},
    "transact-20": {"rate": (2.8, 3.7)},
    "arrive-20": {"rate": (2.8, 4)},
    "worker": {"steps": (1.2, 2.2), "CPU a workflow": (0.7, 0.35)},
    "arrive-here": {"p50": (1.5, 0.7), "p99": (4, 1.5)},
    "arrive-elsewhere": {"p50": (10, 1), "p99": (None, None)},
    "idle": {"CPU": (0.5, 0.1), "attempts at the write lock": (0, 0)},
    "load-beside": {"p50": (1.5, 0.7), "p99": (3, 1.4)},
    "stall": {"stall": (25, 20)},
    "fair": {
        "worst wait": (60, 10),
        "slowest / fastest": (0.8, 0.95),
        "all together": (None, None),
    },
    "beside-idle": {"rate": (0.98, 1)},
    "import": {"own share": (12, 8)},
    "memory": {"Python's": (1, 1), "the process's, traced": (None, None)},
    "growth": dict.fromkeys(("next_ready", "arrive", "done", "append"), (1.5, 1.2)),
    "listing": dict.fromkeys(
        ("status", "counts", "list", "list of a state", "list of a queue", "list by prefix"),
        (1.5, 1.2),
    ),
    "sweeping": {"p99 of others": (2, 1.5), "rate": (None, None)},
}


def benched(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH), *arguments]
    return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=50)


def test_the_bench_lists_every_figure() -> None:
    listed = benched("--list")
    assert listed.returncode == 0, listed.stderr
    assert [line.split()[0] for line in listed.stdout.splitlines()] == list(FIGURES)


def test_the_bench_knows_what_is_asked_of_each_figure() -> None:
    listed = benched("--list", "--json")
    assert listed.returncode == 0, listed.stderr
    targets = {
        figure["name"]: {row["quantity"]: (row["must"], row["aim"]) for row in figure["rows"]}
        for figure in json.loads(listed.stdout)
    }
    assert targets == FIGURES


def test_the_bench_measures_a_figure() -> None:
    measured = benched("import", "--json")
    document = json.loads(measured.stdout)
    (figure,) = document["figures"]
    (row,) = figure["rows"]
    assert figure["error"] is None
    assert row.keys() == {
        *("quantity", "unit", "ours", "raw", "ratio", "must", "aim", "at_most", "met", "repeats")
    }
    assert row["ours"] > 0
    assert len(row["repeats"]) == 11
    assert measured.returncode == (0 if document["has_every_must"] else 1)


def test_the_bench_refuses_a_figure_it_does_not_have() -> None:
    refused = benched("no-such-figure")
    assert refused.returncode == 2
    assert "no-such-figure" in refused.stderr
