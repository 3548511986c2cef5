"""The checks of Redis as a broker: those of Redis as a store, since what it forgets is lost either way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retrysafe.backends import registry
from retrysafe.backends.checks import gather
from retrysafe.backends.driver import run
from retrysafe.backends.redis import checks
from retrysafe.messaging.brokers.checks import BrokerExamination


def _gather(url: str, topics: tuple[str, ...]) -> Mapping[str, Any]:
    backend = registry.connect(url)
    backend.users += 1
    try:
        return run(gather(backend, checks.EXAMINATION, []), backend.client())
    finally:
        if registry.leave(backend):
            backend.close()


EXAMINATION = BrokerExamination(checks.CHECKS, _gather)
