"""The figures of `scripts/measure-house`: a module for each kind; `ratchet` compares.

A figure has a name of its own, such as ``claim-sqlite.frames``.
"""

from pathlib import Path

import retrysafe

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(retrysafe.__file__).parent
