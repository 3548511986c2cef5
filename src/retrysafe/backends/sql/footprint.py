"""The size of a record in SQLite, PostgreSQL and MySQL, from the rules by which they fill pages.

The constants were measured on tables of a hundred thousand records (`tests/operating/test_plan.py` measures again).
"""

from __future__ import annotations

import math

from retrysafe.backends.footprint import Footprint, Sizes

_SQLITE_PAGE = 4096
_SQLITE_ROW = 238
"""A record without its names and result, with the cell's header."""

_POSTGRESQL_PAGE = 8168
_POSTGRESQL_ROW = 272
_POSTGRESQL_INLINE = 2000
"""A longer row keeps its result in the TOAST table (PostgreSQL's documentation, "TOAST")."""

_CHUNK, _CHUNK_HEAD = 1996, 40
"""A chunk of a result in the TOAST table, and the head of its row."""
_ROWS = 64
"""So many results are laid into pages to find how many fit."""

_MYSQL_ROW = 247
_MYSQL_PAGE, _MYSQL_USED = 16384, 16252
"""Bytes of a page, and those that rows can take."""
_MYSQL_INLINE = 8126
"""Of a longer row the result is in pages of its own (MySQL's documentation, "DYNAMIC Row Format")."""
_MYSQL_FILL = 0.72
"""Keys are random: pages split in the middle, and are full by little more than the logarithm of 2."""
_MYSQL_RESERVED = 8 / 7
"""InnoDB takes further pages from the file before an eighth of those that it has is left."""


def sqlite(sizes: Sizes) -> Footprint:
    """A row in a table B-tree (https://www.sqlite.org/fileformat.html, section 1.6), and two indexes."""
    row = _SQLITE_ROW + sizes.names + sizes.result
    largest = _SQLITE_PAGE - 35
    if row <= largest:
        stored = _SQLITE_PAGE / ((_SQLITE_PAGE - 8) // row)
    else:
        least = (_SQLITE_PAGE - 12) * 32 // 255 - 23
        local = least + (row - least) % (_SQLITE_PAGE - 4)
        local = local if local <= largest else least
        pages = math.ceil((row - local) / (_SQLITE_PAGE - 4))
        stored = _SQLITE_PAGE / ((_SQLITE_PAGE - 8) // local) + pages * _SQLITE_PAGE
    notes = ("One process writes at a time; the file never shrinks by itself.",)
    return Footprint(stored, 65, 4.7 * _SQLITE_PAGE + 2 * stored, requests=3, notes=notes)


def postgresql(sizes: Sizes) -> Footprint:
    """A heap row, its result in TOAST when the row is long, the key's index and that of what can be swept."""
    row = _POSTGRESQL_ROW + sizes.names + sizes.result
    if row <= _POSTGRESQL_INLINE:
        stored = _POSTGRESQL_PAGE / (_POSTGRESQL_PAGE // row)
    else:
        stored = _POSTGRESQL_ROW + 12 + sizes.names + _toast(sizes.result)
    log = 1020 + 1.2 * sizes.names + 1.08 * sizes.result
    notes = (
        "Leave half as much again for rows that wait for vacuum: a claim is inserted, updated and removed.",
        "Full-page images after each checkpoint come on top of the log: raise max_wal_size for a high rate.",
    )
    return Footprint(stored, 90, log, notes=notes)


def _toast(result: int) -> float:
    """Bytes of the TOAST pages for a result: its chunks, laid into pages one after another as rows are written."""
    tuples = [_CHUNK + _CHUNK_HEAD] * (result // _CHUNK) + [result % _CHUNK + _CHUNK_HEAD]
    pages, left = 0, 0
    for size in tuples * _ROWS:
        if size > left:
            pages, left = pages + 1, _POSTGRESQL_PAGE
        left -= size
    return pages * 8192 / _ROWS


def mysql(sizes: Sizes) -> Footprint:
    """A row of the clustered index, whose keys come in no order, and two further indexes."""
    row, pages = _MYSQL_ROW + sizes.names + sizes.result, 0
    if row > _MYSQL_INLINE:
        row, pages = _MYSQL_ROW + sizes.names + 20, math.ceil(sizes.result / (_MYSQL_PAGE - 46))
    each = _MYSQL_PAGE / (_MYSQL_FILL * (_MYSQL_USED // row)) + pages * _MYSQL_PAGE
    log = 1610 + 4 * sizes.names + 2 * sizes.result
    notes = (
        "The binary log has a result twice: when it is stored, and when it is removed.",
        "MariaDB's binlog_format=MIXED logs statements too: up to 1.8 times as much.",
    )
    return Footprint(_MYSQL_RESERVED * each, 200, log, requests=3, notes=notes)
