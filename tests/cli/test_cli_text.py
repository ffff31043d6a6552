"""Text, tables, lengths of time and values by themselves."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from without_durability_sqlite.cli import moments
from without_durability_sqlite.cli.contents import stored
from without_durability_sqlite.cli.tables import PADDED, UNLIMITED, Cell, Column, table
from without_durability_sqlite.cli.text import (
    cells,
    escaped,
    lines_of,
    named,
    shortened,
    shortened_within,
)

HOSTILE = [
    "\x1b[2J\x1b]0;owned\x07",
    "two\nlines",
    "carriage\rreturn",
    "tab\tbed",
    "\x9b31m",  # a one-character escape sequence
    "right\u202eleft",  # changes the direction of what follows
    "\ud800",
    "line\u2028separator",
    "\x00",
    "zero\u200bwidth",
]


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_what_could_drive_a_terminal_is_shown_as_an_escape(text: str) -> None:
    for shown in (escaped(text), named(text), *lines_of(text)):
        assert shown.isprintable()
        shown.encode()
    assert escaped(text) != text


@pytest.mark.parametrize("text", ["order-1", "Bestellung-ä", "注文", "🎉", "a'b\"c", "a b"])
def test_a_plain_id_is_shown_as_it_is(text: str) -> None:
    assert named(text) == text


@pytest.mark.parametrize("text", ["", " ", "a ", "\n"])
def test_an_id_that_one_could_not_see_the_end_of_stands_in_quotes(text: str) -> None:
    assert named(text) == repr(text)


@pytest.mark.parametrize(
    ("text", "width"), [("abc", 3), ("日本", 4), ("e\u0301", 1), ("🎉", 2), ("", 0)]
)
def test_width_is_counted_in_cells(text: str, width: int) -> None:
    assert cells(text) == width


@pytest.mark.parametrize("shorten", [shortened, shortened_within])
@pytest.mark.parametrize(
    "text", ["order-2030-000001", "日本語日本語日本語", "e\u0301" * 40, "x" * 10**6]
)
@pytest.mark.parametrize("width", range(1, 14))
def test_a_shortened_text_fits(shorten: object, text: str, width: int) -> None:
    assert callable(shorten)
    short = shorten(text, width)
    assert cells(short) <= width
    assert "…" in short


def test_an_id_is_shortened_within_and_a_value_at_its_end() -> None:
    assert shortened_within("order-2030-000017", 9) == "orde…0017"
    assert shortened("order-2030-000017", 9) == "order-20…"


def test_marks_without_a_width_do_not_make_a_text_endless() -> None:
    assert len(shortened("e" + "\u0301" * 10_000, 10)) <= 41


def test_the_widest_column_gives_way_first() -> None:
    columns = [Column("id", "middle"), Column("state"), Column("about", "end")]
    body = [[Cell("order-1"), Cell("ready"), Cell("x" * 50)]]
    assert table(columns, body, 30, plain) == [
        "id       state  about",
        "order-1  ready  xxxxxxxxxxxxx…",
    ]
    assert table(columns, body, UNLIMITED, plain)[1].endswith("x" * 50)


def test_where_nothing_is_shortened_one_long_cell_does_not_widen_every_row() -> None:
    columns = [Column("id", "middle"), Column("state"), Column("about", "end")]
    body = [[Cell("x" * 10**6), Cell("ready"), Cell("")]]
    body += [[Cell(f"order-{n}"), Cell("ready"), Cell("")] for n in range(9)]
    head, long, *others = table(columns, body, UNLIMITED, plain)
    assert long == "x" * 10**6 + "  ready"
    assert max(map(len, [head, *others])) == PADDED + len("  state  about")
    assert {line.index("ready") for line in others} == {PADDED + 2}


def test_wide_characters_keep_the_columns_in_line() -> None:
    columns = [Column("id", "middle"), Column("state")]
    lines = table(
        columns, [[Cell("日本"), Cell("ready")], [Cell("abcd"), Cell("ready")]], 80, plain
    )
    assert lines == ["id    state", "日本  ready", "abcd  ready"]


@pytest.mark.parametrize(
    ("typed", "length"),
    [
        ("30d", timedelta(days=30)),
        ("12h", timedelta(hours=12)),
        ("90min", timedelta(minutes=90)),
        ("90m", timedelta(minutes=90)),
        ("45s", timedelta(seconds=45)),
        ("2w", timedelta(weeks=2)),
        ("1.5 h", timedelta(minutes=90)),
        ("1d12h", timedelta(hours=36)),
        ("0s", timedelta(0)),
    ],
)
def test_a_length_of_time_is_read(typed: str, length: timedelta) -> None:
    assert moments.span(typed) == length


@pytest.mark.parametrize(
    "typed", ["", "30", "d", "-1d", "1y", "30d!", "1e9d", "99999999999d", "x1d"]
)
def test_what_is_no_length_of_time_is_refused(typed: str) -> None:
    with pytest.raises(ValueError, match="time"):
        moments.span(typed)


def test_a_moment_ahead_is_told_as_ahead() -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    assert moments.ago(now - timedelta(minutes=3), now) == "3 min ago"
    assert moments.ago(now + timedelta(hours=2), now) == "in 2 h"


@pytest.mark.parametrize("zone", ["CET-1", "EST+5"])
def test_the_ends_of_the_calendar_are_written_in_utc_where_no_zone_can(
    zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        last = moments.written(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC), utc=False)
        assert last.endswith("23:59:59 UTC" if zone == "CET-1" else "-0500")
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (57344, "56 KiB"), (5 * 2**40, "5.0 TiB")],
)
def test_bytes_are_told_in_the_unit_that_suits(count: int, words: str) -> None:
    assert moments.size(count) == words


@pytest.mark.parametrize("raw", [b"no json", b"\xff\xfe", b"NaN", b"[" * 100_000, b""])
def test_what_is_no_json_is_shown_as_it_is_stored(raw: bytes) -> None:
    content = stored(raw)
    assert not content.decodes
    assert content.line().isprintable()
    assert list(content.facts()) == ["raw"]


def plain(style: str, text: str) -> str:
    return text
