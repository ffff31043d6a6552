"""Every fenced Python and shell block of README and docs runs, in order, in a folder of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# A block, and what it prints where that stands right below it.
BLOCK = re.compile(
    r"^```(python|sh)\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL
)
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(#[^)]*)?\)")


def environment() -> dict[str, str]:
    """This interpreter first on the PATH, under the name the pages use, and the sources."""
    return os.environ | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHONWARNINGS": "error",
    }


def blocks(page: Path) -> list[tuple[str, str, str]]:
    return BLOCK.findall(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda p: p.name)
def test_every_block_of_the_page_runs(page: Path, tmp_path: Path) -> None:
    if sys.platform == "win32":
        pytest.skip("the shell blocks and signal handlers of the pages are POSIX")
    for language, block, printed in blocks(page):
        if language == "sh":  # what a reader would type next, who has run nothing yet
            for left in tmp_path.glob("*.db*"):
                left.unlink()
        name = re.match(r"# file: (\S+)", block)
        script = tmp_path / (name[1] if name else f"block.{language}")
        script.write_text(block, encoding="utf-8")
        command = [sys.executable if language == "python" else "bash", script.name]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=50,
        )
        assert done.returncode == 0, f"{page.name}:\n{block}\n{done.stdout}{done.stderr}"
        if printed:
            assert done.stdout == printed, f"{page.name}:\n{block}\nprinted\n{done.stdout}"
        if "kill -9" in block:
            said = done.stdout.splitlines()
            assert said.count("collecting") == 1, "a recorded step ran again after the kill"
            assert said.count("sending: 14") == 1


def test_the_readme_shows_a_workflow_with_its_worker_in_under_thirty_lines() -> None:
    (language, block, _), *_ = blocks(ROOT / "README.md")
    assert language == "python"
    assert "work(" in block
    assert len(block.splitlines()) < 30


def test_the_two_commands_stand_in_the_readme_to_the_letter() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "\nPYTHONPATH=src python3 docs/examples/order.py  " in readme
    assert (
        "\npython3 -m venv .venv && .venv/bin/pip install '.[test]' && "
        ".venv/bin/python -m pytest  " in readme
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_link_of_the_page_leads_somewhere(page: Path) -> None:
    for path, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        target = (page.parent / path) if path else page
        assert target.exists(), f"{page.name} links to {path}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {
                "#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
                for heading in headings
            }
            assert anchor in anchors, f"{page.name} links to {path}{anchor}"


def test_the_order_example_proves_its_books(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs/examples/order.py", tmp_path / "orders.db"],
        env=environment(),
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=55,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PROOF holds: 6 orders; stock moved 6 times" in done.stdout


def test_every_test_that_a_guarantee_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/guarantees.md").read_text("utf-8")))
    assert named
    assert named - names_of_tests() == set()


@pytest.mark.parametrize(
    "clause",
    [f"c{n}" for n in range(1, 20)]
    + [f"s{n}" for n in range(1, 12)]
    + [f"d{n}" for n in (1, 2, 3, 4)],
)
def test_every_clause_is_cited_by_a_test(clause: str) -> None:
    assert any(f"_{clause}_" in name for name in names_of_tests())


def names_of_tests() -> set[str]:
    return {
        name
        for page in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", page.read_text(encoding="utf-8"))
    }
