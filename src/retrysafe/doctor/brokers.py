"""Examines one broker within a limited time."""

from __future__ import annotations

from collections.abc import Mapping

from retrysafe.backends.urls import without_password
from retrysafe.doctor.diagnosis import Diagnosis, judged
from retrysafe.doctor.stores import limited
from retrysafe.errors import ConfigurationError, RetrysafeError
from retrysafe.messaging.brokers.checks import UNREACHABLE, WINDOW, BrokerExamination
from retrysafe.messaging.brokers.registry import spec_of


def examination_of(url: str) -> BrokerExamination:
    """The checks of the kind of broker that a URL leads to. Raises `ConfigurationError` for one that has none."""
    spec = spec_of(url)
    if not spec.checks:
        raise ConfigurationError(f"--broker {without_password(url)}: there are no checks for {spec.title}.")
    examination: BrokerExamination = spec.load(spec.checks)
    return examination


def examine(url: str, topics: tuple[str, ...], within: float, windows: Mapping[str, float]) -> list[Diagnosis]:
    """What is wrong with a broker and these topics. One that does not answer in time has that as its finding.

    ``windows``: for how many seconds inboxes remember a message, by the names of their boundaries.
    """
    name, examination = without_password(url), examination_of(url)
    try:
        facts = limited(lambda: examination.facts(url, topics), within)
    except TimeoutError:
        return judged((UNREACHABLE,), {"unreachable": f"It did not answer within {within:g} s."}, name)
    except RetrysafeError as error:
        return judged((UNREACHABLE,), {"unreachable": error.detail or str(error)}, name)
    except Exception as error:  # noqa: BLE001 - whatever its client raises is a finding
        said = f"{type(error).__name__} when it was asked."
        return judged((UNREACHABLE,), {"unreachable": said}, name)
    kept = examination.kept(facts)
    told = {**facts, "redelivered_for": kept, "windows": windows, "needed": max(kept.values(), default=0.0)}
    return judged((*examination.checks, WINDOW), told, name)
