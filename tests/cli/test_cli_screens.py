"""What the reading commands draw, to the letter, over one file at one moment."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from console import piped, said
from orders import now

from without_durability_sqlite.cli.text import cells

STATUS = """\
orders.db: SIZE, schema version 2, 9 workflows

queue        ready  sleeping  blocked  completed  failed  cancelled
mail             0         0        1          0       0          0
workflow         3         1        1          1       1          1
all of them      3         1        2          1       1          1

1 pass is running: order-5
waiting longest for a worker, 17 s: order-8 in workflow

newest failures
workflow  failed           error
order-4   39 min 48 s ago  shop.CardDeclined: no cover
"""

LIST = """\
workflow  state              age      changed  attempts  what it waits for
order-8   ready             17 s         17 s         0
order-5   running           18 s         17 s         1
order-6   ready             31 s         28 s         1  again in 40 s: TimeoutError: the bank did …
letter-1  blocked     9 min 45 s   9 min 44 s         0  replies (deliver)
order-7   cancelled  34 min 48 s  34 min 45 s         0  ordered twice
order-4   failed     39 min 51 s  39 min 48 s         1  shop.CardDeclined: no cover
order-3   sleeping   44 min 54 s  44 min 51 s         0  due in 2 d
order-2   blocked    49 min 57 s  49 min 54 s         0  approved by (arrive)
order-1   completed       55 min  54 min 57 s         0  {"total": 12.5}
"""

SHOW_FAILED = """\
'order-4' was parked at 2020-01-01 09:20:12 UTC after 1 pass: shop.CardDeclined: no cover. \
It runs again after retry, after rewind, or when something arrives for it.

  state      failed
  queue      workflow
  created    2020-01-01 09:20:09 UTC (39 min 51 s ago)
  changed    2020-01-01 09:20:12 UTC (39 min 48 s ago)
  attempts   1

when                     after  from     key     value
2020-01-01 09:20:09 UTC         outside  order   {"lines": 2, "sku": "A-1"}
2020-01-01 09:20:12 UTC  3.0 s  a pass   charge  "receipt 4711"

last error
  Traceback (most recent call last):
    File "shop.py", line 17, in charge
      raise CardDeclined('no cover')
  shop.CardDeclined: no cover
"""

SHOW_LISTENING = """\
'letter-1' waits for a message at 'replies' (deliver) since 2020-01-01 09:50:16 UTC.

  state      blocked
  queue      mail
  created    2020-01-01 09:50:15 UTC (9 min 45 s ago)
  changed    2020-01-01 09:50:16 UTC (9 min 44 s ago)
  attempts   0
  waits for  replies (deliver)

when                     after  from     key                         value
2020-01-01 09:50:15 UTC         outside  order                       {"lines": 2, "sku": "A-1"}
2020-01-01 09:50:16 UTC  1.0 s  outside  inbox:00000000000000000012  "and another thing"
"""

CHECK = """\
ok     integrity: the file's pages and indexes are sound
ok     schema: version 2, with all its parts
ok     SQLite: this Python has SQLite VERSION, and 3.35.0 or later is needed
ok     write-ahead log: empty
ok     workflows: ledger, queue, claims and counts agree

nothing is wrong
"""


def drawn(*argv: str, width: int = 100) -> str:
    done = said("orders.db", *argv, "--utc", clock=now, terminal=True, width=width)
    assert (done.code, done.err) == (0, "")
    return re.sub(r"\d+(\.\d)? [KM]iB", "SIZE", done.out)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["status"], STATUS),
        (["list"], LIST),
        (["show", "order-4"], SHOW_FAILED),
        (["show", "letter-1"], SHOW_LISTENING),
    ],
    ids=["status", "list", "show a failed one", "show one that listens"],
)
@pytest.mark.usefixtures("orders")
def test_the_screen_is_drawn_to_the_letter(argv: list[str], expected: str) -> None:
    assert drawn(*argv) == expected


@pytest.mark.usefixtures("orders")
def test_check_is_drawn_to_the_letter() -> None:
    assert re.sub(r"SQLite [\d.]+,", "SQLite VERSION,", drawn("check")) == CHECK


@pytest.mark.parametrize(
    ("workflow", "sentence"),
    [
        ("order-1", "'order-1' completed at 2020-01-01 09:05:03 UTC.\n"),
        (
            "order-3",
            "'order-3' sleeps in step 'cooling off' until 2020-01-03 10:00:00 UTC, 2 d from now.\n",
        ),
        ("order-7", "'order-7' was cancelled at 2020-01-01 09:25:15 UTC: ordered twice.\n"),
        (
            "order-8",
            "'order-8' is queued in 'workflow' and has waited 17 s for a worker to take it.\n",
        ),
    ],
)
@pytest.mark.usefixtures("orders")
def test_why_is_one_sentence(workflow: str, sentence: str) -> None:
    assert drawn("why", workflow) == sentence


@pytest.mark.usefixtures("orders")
def test_a_finished_workflow_shows_its_result_and_a_cancelled_one_its_reason() -> None:
    assert '  result     {"total": 12.5}\n' in drawn("show", "order-1")
    assert "  reason     ordered twice\n" in drawn("show", "order-7")
    assert "  due        2020-01-03 10:00:00 UTC (in 2 d)\n" in drawn("show", "order-3")


@pytest.mark.parametrize("width", [20, 33, 48, 61, 80, 100, 200])
@pytest.mark.parametrize("argv", [["list"], ["status"]], ids=["list", "status"])
@pytest.mark.usefixtures("orders")
def test_no_line_of_a_table_is_wider_than_the_terminal(argv: list[str], width: int) -> None:
    first, *lines = drawn(*argv, width=width).splitlines()
    tables = [line for line in [first, *lines] if "  " in line]
    assert tables
    assert [line for line in tables if cells(line) > width] == []


@pytest.mark.usefixtures("orders")
def test_a_wide_terminal_shows_what_a_narrow_one_shortens() -> None:
    assert "the bank did not answer" not in drawn("list", width=100)
    assert "the bank did not answer" in drawn("list", width=120)
    assert "the bank did not answer" in drawn("list", "--full", width=40)
    assert "what it waits for" not in drawn("list", width=30)


@pytest.mark.usefixtures("orders")
def test_what_waits_longest_is_told_of_all_queues() -> None:
    for queue in ("workflow", "mail"):
        said("orders.db", "deliver", f"new in {queue}", "1", "--namespace", queue, clock=now)
    assert "waiting longest for a worker, 17 s: order-8 in workflow\n" in drawn("status")


@pytest.mark.usefixtures("orders")
def test_a_narrow_terminal_has_the_counts_in_rows() -> None:
    assert "cancelled     0         1            1\n" in drawn("status", width=40)


@pytest.mark.usefixtures("orders")
def test_the_filters_of_list_narrow_it_down() -> None:
    def ids(*argv: str) -> list[str]:
        done = said("orders.db", "list", *argv, clock=now)
        return [line.split("\t")[0] for line in done.lines]

    assert ids("--state", "blocked") == ["letter-1", "order-2"]
    assert ids("--namespace", "mail") == ["letter-1"]
    assert ids("--prefix", "letter") == ["letter-1"]
    assert ids("--state", "blocked", "--namespace", "workflow") == ["order-2"]
    assert ids("--prefix", "nobody") == []


@pytest.mark.usefixtures("orders")
def test_list_goes_on_from_where_its_page_ended() -> None:
    seen: list[str] = []
    after: list[str] = []
    while True:
        done = said("orders.db", "list", "--limit", "4", *after, "--json", clock=now)
        seen += [json.loads(line)["workflow"] for line in done.lines]
        told = re.search(r"--after (\d+)", done.err)
        if told is None:
            break
        after = ["--after", told[1]]
    assert seen == [json.loads(line)["workflow"] for line in everything()]
    assert len(seen) == 9


@pytest.mark.usefixtures("orders")
def test_an_empty_list_says_so_to_a_person_and_nothing_to_a_program() -> None:
    assert drawn("list", "--prefix", "nobody") == "no workflow fits\n"
    assert piped("orders.db", "list", "--prefix", "nobody").out == ""
    assert piped("orders.db", "list", "--prefix", "nobody", "--json").out == ""


@pytest.mark.usefixtures("orders")
def test_a_pipe_gets_whole_ids_and_moments_between_tabs() -> None:
    first, *_ = piped("orders.db", "list").lines
    assert first.split("\t") == [
        "order-8",
        "ready",
        "2020-01-01T09:59:43+00:00",
        "2020-01-01T09:59:43+00:00",
        "0",
        "",
    ]


@pytest.mark.usefixtures("orders")
def test_times_are_local_unless_they_are_wanted_in_utc() -> None:
    local = piped("orders.db", "why", "order-1", TZ="Asia/Kolkata").out
    assert local == "'order-1' completed at 2020-01-01 14:35:03 +0530.\n"
    assert piped("orders.db", "why", "order-1", "--utc", TZ="Asia/Kolkata").out == (
        "'order-1' completed at 2020-01-01 09:05:03 UTC.\n"
    )


@pytest.mark.usefixtures("orders")
def test_options_may_stand_before_the_file_before_the_command_and_after_it() -> None:
    expected = said("orders.db", "why", "order-1", "--json", "--utc").out
    assert json.loads(expected)["state"] == "completed"
    assert said("--json", "--utc", "orders.db", "why", "order-1").out == expected
    assert said("orders.db", "--json", "why", "--utc", "order-1").out == expected


def test_json_status_has_what_the_screen_has(orders: Path) -> None:
    document = json.loads(said("orders.db", "status", "--json", clock=now).out)
    assert document["file"] == str(orders)
    assert document["at"] == "2020-01-01T10:00:00+00:00"
    assert document["counts"] == {
        "ready": 3,
        "sleeping": 1,
        "blocked": 2,
        "completed": 1,
        "failed": 1,
        "cancelled": 1,
    }
    assert document["namespaces"]["mail"]["blocked"] == 1
    assert document["running"] == ["order-5"]
    assert document["waiting_longest"] == {
        "workflow": "order-8",
        "namespace": "workflow",
        "since": "2020-01-01T09:59:43+00:00",
    }
    assert [one["workflow"] for one in document["failures"]] == ["order-4"]
    assert document["schema"] == 2
    assert document["bytes"] > document["log_bytes"] == 0


@pytest.mark.usefixtures("orders")
def test_json_list_has_a_line_per_workflow_with_what_goes_with_its_state() -> None:
    listed = {one["workflow"]: one for one in map(json.loads, everything())}
    assert listed["order-1"]["result"] == {"total": 12.5}
    assert listed["order-2"]["waiting"] == ["approved by"]
    assert listed["letter-1"]["listening"] == ["replies"]
    assert listed["order-3"]["due"] == "2020-01-03T10:00:00+00:00"
    assert listed["order-4"]["error"]["type"] == "shop.CardDeclined"
    assert listed["order-5"]["running"] is True
    assert listed["order-7"]["reason"] == "ordered twice"


@pytest.mark.usefixtures("orders")
def test_json_show_has_every_record_with_its_moment() -> None:
    document = json.loads(said("orders.db", "show", "order-2", "--json", clock=now).out)
    assert document["why"].startswith("'order-2' waits for a value under 'approved by'")
    assert document["records"] == [
        {
            "key": "order",
            "at": "2020-01-01T09:10:03+00:00",
            "supplied": True,
            "value": {"lines": 2, "sku": "A-1"},
        },
        {
            "key": "charge",
            "at": "2020-01-01T09:10:06+00:00",
            "supplied": False,
            "value": "receipt 4711",
        },
    ]


@pytest.mark.usefixtures("orders")
def test_json_check_says_that_nothing_is_wrong() -> None:
    document = json.loads(said("orders.db", "check", "--json", clock=now).out)
    assert document["wrong"] == 0
    assert {one["ok"] for one in document["findings"]} == {True}


@pytest.mark.parametrize("command", ["show", "why"])
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["words", "json"])
@pytest.mark.usefixtures("orders")
def test_an_unknown_id_is_a_refusal(command: str, form: list[str]) -> None:
    done = said("orders.db", command, "nobody", *form)
    assert (done.code, done.out) == (1, "")
    assert re.fullmatch(
        r"without-durability: [Nn]othing is known of workflow 'nobody'.*\n", done.err
    )


def everything() -> list[str]:
    return said("orders.db", "list", "--json", clock=now).lines
