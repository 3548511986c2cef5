"""``python -m benchmarks.rivals.installing``: install the extra ``rivals``, one by one.

One that cannot be installed, or that would change the version of what is there, is reported: its rows are measured
without it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def main() -> None:
    """Install what can be installed."""
    rivals: list[str] = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"][
        "rivals"
    ]
    pip = [sys.executable, "-m", "pip"]
    with tempfile.TemporaryDirectory() as folder:
        settled = Path(folder, "constraints.txt")
        settled.write_bytes(subprocess.check_output([*pip, "freeze", "--exclude-editable"]))
        for rival in rivals:
            if subprocess.run([*pip, "install", "--quiet", "--constraint", str(settled), rival]).returncode:
                print(f"{rival} cannot be installed, and has no part in its rows", file=sys.stderr)


if __name__ == "__main__":
    main()
