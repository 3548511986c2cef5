"""The data directories of services, and the time to wait for them."""

from __future__ import annotations

import os
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
SCRATCH = Path(os.environ.get("RETRYSAFE_SCRATCH") or CHECKOUT / ".services").resolve()
LOOPBACK = "127.0.0.1"
START_DEADLINE = 60.0
STOP_DEADLINE = 30.0
