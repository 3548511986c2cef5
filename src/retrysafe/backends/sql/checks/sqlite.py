"""The checks of SQLite."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrysafe.backends.checks import Examination
from retrysafe.backends.sql.checks import indexes
from retrysafe.backends.sql.checks.indexes import rows_of
from retrysafe.protocol.checks import Check, Facts, Severity, find_fact
from retrysafe.protocol.requests import Program, ask

if TYPE_CHECKING:
    from retrysafe.backends.backend import Backend

_GUIDE = "explanation/which-store.md"
_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs", "ceph", "glusterfs")
_MOUNTS = Path("/proc/self/mounts")
_OURS = "name GLOB 'retrysafe_*'"


def _gather(backend: Backend) -> Program[dict[str, Any]]:
    facts: dict[str, Any] = {}
    for pragma in ("synchronous", "journal_mode"):
        facts[pragma] = str((yield from ask(rows_of(f"PRAGMA {pragma}")))[0][0]).lower()
    tables = yield from ask(rows_of(f"SELECT name FROM sqlite_master WHERE type = 'table' AND {_OURS}"))
    names = yield from ask(rows_of(f"SELECT name FROM sqlite_master WHERE type = 'index' AND {_OURS}"))
    facts["lost"] = indexes.missing(indexes.PARTIAL, [name for (name,) in tables], [name for (name,) in names])
    unique = yield from ask(rows_of(f"SELECT DISTINCT m.name FROM sqlite_master AS m, pragma_table_info(m.name) AS c "
                                  f"WHERE m.type = 'table' AND m.{_OURS} AND c.pk > 0"))  # fmt: skip
    facts["keyless"] = ", ".join(sorted({name for (name,) in tables} - {name for (name,) in unique}))
    files = yield from ask(rows_of("PRAGMA database_list"))
    facts["file"] = next((path for _, name, path in files if name == "main"), "") or ""
    return facts


def file_system(file: str, mounts: str) -> str:
    """The type of the file system that a file is on, from the kernel's table of mounts; empty if it is not told."""
    found = ("", "")
    for line in mounts.splitlines():
        _, point, kind, *_ = line.split(" ")
        if Path(file).is_relative_to(point) and len(point) >= len(found[0]):
            found = (point, kind)
    return found[1]


def _remote(facts: Facts) -> str | None:
    if not facts.get("file") or not _MOUNTS.exists():
        return None
    kind = file_system(facts["file"], facts.get("mounts") or _MOUNTS.read_text(encoding="utf-8"))
    return f"The file is on {kind}, whose locks do not hold between machines." if kind in _REMOTE else None


def _synchronous(facts: Facts) -> str | None:
    level = {"0": "OFF", "1": "NORMAL"}.get(str(facts.get("synchronous")))
    return f"synchronous is {level}: a loss of power may take the last commits." if level else None


def _journal(facts: Facts) -> str | None:
    mode = facts.get("journal_mode")
    if mode not in ("off", "memory") or not facts.get("file"):
        return None
    return f"journal_mode is {mode}: a crash while a transaction commits may corrupt the file."


CHECKS = (
    Check(
        "sqlite-synchronous",
        "Is a commit on disk before it is acknowledged?",
        Severity.WARNING,
        "PRAGMA synchronous = FULL  on every connection; a sqlite:/// URL does that",
        _GUIDE,
        _synchronous,
    ),
    Check(
        "sqlite-journal",
        "Does the file survive a crash in a commit?",
        Severity.ERROR,
        "PRAGMA journal_mode = WAL;",
        _GUIDE,
        _journal,
    ),
    Check(
        "sqlite-network-file-system",
        "Is the file on a disk of this machine?",
        Severity.ERROR,
        "Move the file to a local disk, or use PostgreSQL or MySQL for several machines.",
        _GUIDE,
        _remote,
    ),
    Check(
        "sqlite-unique-key",
        "Has every table the primary key by which one of two claims wins?",
        Severity.ERROR,
        "Find and remove the duplicates, and make the table again by  {program} migrate --store {store}",
        "how-to/own-the-schema.md",
        find_fact("keyless", "No primary key: {}."),
    ),
    Check(
        "sqlite-indexes",
        "Are the indexes of the migrations there?",
        Severity.WARNING,
        "{program} doctor --store {store} --fix  (CREATE INDEX, for each of them)",
        "how-to/own-the-schema.md",
        indexes.find_lost,
        indexes.repair_by("CREATE INDEX IF NOT EXISTS"),
    ),
)
EXAMINATION = Examination(CHECKS, _gather, None, lambda store: store.time())
