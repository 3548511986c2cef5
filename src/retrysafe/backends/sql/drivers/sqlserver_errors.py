"""Errors of SQL Server and its drivers as the SQLSTATE that means the same elsewhere, and those a person has to mend.

pymssql tells the server's number. mssql-python tells neither number nor SQLSTATE, only its own words for the SQLSTATE,
and the server's text, which is English unless the login has another language: then a conflict that has no SQLSTATE of
its own is an error of the statement.
"""

from __future__ import annotations

import re

_NUMBERS = {
    **dict.fromkeys((1205, 3960, 41302, 41305, 41325), "40001"),
    **dict.fromkeys((2601, 2627), "23505"),
    1222: "55P03",
    208: "42P01",
    207: "42703",
    **dict.fromkeys((3930, 3998), "25P02"),
    **dict.fromkeys((229, 230, 262), "42501"),
    18456: "28P01",
    **dict.fromkeys((911, 4060), "3D000"),
    **dict.fromkeys((976, 978, 3906, 3908), "25006"),
    **dict.fromkeys((701, 1105, 8645, 9002), "53100"),
    **dict.fromkeys((10928, 10929, 17809, 40501, 49918, 49919, 49920), "53300"),
    **dict.fromkeys((6005, 17142, 40197, 40613), "57P01"),
    **dict.fromkeys((20003, 20004, 20006, 20009, 20017, 20047), "08S01"),
}
"""By the server's number; those from 20000 to 20100 are of pymssql's library."""
_WORDS = {
    "Serialization failure": "40001",
    "Integrity constraint violation": "23505",
    "Base table or view not found": "42P01",
    "Column not found": "42703",
    "Invalid authorization specification": "28P01",
    "Timeout expired": "57014",
    "Server rejected the connection": "08004",
    **dict.fromkeys(
        (
            *("Client unable to establish connection", "Connection not open", "Connection failure during transaction"),
            *("Communication link failure", "Disconnect error", "Connection timeout expired"),
        ),
        "08S01",
    ),
}
"""By mssql-python's words for the SQLSTATE."""
_TEXTS = (
    (re.compile(r"deadlock victim|Snapshot isolation transaction aborted"), "40001"),
    (re.compile(r"Lock request time out"), "55P03"),
    (re.compile(r"current transaction cannot be committed|Uncommittable transaction"), "25P02"),
    (re.compile(r"permission was denied"), "42501"),
    (re.compile(r"Cannot open database"), "3D000"),
    (re.compile(r"database is read-only|not accessible for queries"), "25006"),
)
"""By the server's text, where its SQLSTATE is that of every error of a statement."""
_REMEDIES = {
    "28P01": "Correct the user and the password in store=.",
    "3D000": "Create the database and run retrysafe migrate on it, or correct its name in store=.",
    "42501": "Grant the user of store= SELECT, INSERT, UPDATE and DELETE on all tables retrysafe_*.",
}
_LIBRARIES = (
    "Install the libraries that the driver is linked to (Debian: apt-get install libltdl7 libkrb5-3 libgssapi-krb5-2), "
    "or write mssql+pymssql:// in store=."
)


def is_ours(error: BaseException | None) -> bool:
    """Tell whether an error is of one of the drivers."""
    return type(error).__module__.partition(".")[0] in ("mssql_python", "pymssql")


def state_of(error: BaseException | None) -> str | None:
    """The SQLSTATE of an error of a driver's, None for any other."""
    if error is None or not is_ours(error):
        return None
    words = getattr(error, "driver_error", None)
    if words is None:
        return _NUMBERS.get(_number(error), "HY000")
    found = next((state for pattern, state in _TEXTS if pattern.search(str(error))), None)
    return found or _WORDS.get(words, "HY000")


def _number(error: BaseException) -> int:
    """pymssql hands over a pair of number and text, when it connects as one argument."""
    first = error.args[0] if error.args else None
    number = first[0] if isinstance(first, tuple) and first else first
    if isinstance(number, str):  # the wrapped text of a commit: "Cannot commit transaction: (1205, b'…')"
        found = re.search(r"\((\d+), b", number)
        return int(found[1]) if found else 0
    return number if isinstance(number, int) else 0


def find_remedy(error: BaseException) -> str | None:
    """Return what to do, or None for an error that is something else, such as an outage."""
    state = state_of(error) or ""
    if "Failed to load the driver" in str(error):
        return _LIBRARIES
    return None if state == "42501" and "retrysafe_" not in str(error) else _REMEDIES.get(state)
