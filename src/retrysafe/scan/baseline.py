"""Known findings in a file, so that only new ones fail a build."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from retrysafe.errors import ConfigurationError
from retrysafe.scan.findings import Finding

_VERSION = 1


def load(path: str) -> dict[str, str]:
    """The fingerprints of a baseline, each with the finding in words. Raises `ConfigurationError`."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        found = data["findings"] if data["version"] == _VERSION else None
        if isinstance(found, dict):
            return found
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"--baseline {path}: {type(error).__name__}: {error}") from error
    raise ConfigurationError(f"--baseline {path}: version {_VERSION} is expected; write it with --write-baseline.")


def save(path: str, findings: Iterable[Finding]) -> None:
    known = {one.fingerprint: f"{one.rule.id} {one.shown} {one.context}".rstrip() for one in findings}
    text = json.dumps(
        {"version": _VERSION, "findings": dict(sorted(known.items(), key=lambda kv: (kv[1], kv[0])))}, indent=1
    )
    try:
        Path(path).write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--write-baseline {path}: {error}") from error
