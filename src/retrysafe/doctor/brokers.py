"""Examines one broker within a limited time."""

from __future__ import annotations

from collections.abc import Mapping

from retrysafe.backends.urls import without_password
from retrysafe.doctor.diagnosis import Diagnosis, judge
from retrysafe.doctor.stores import run_within
from retrysafe.errors import ConfigurationError, RetrysafeError
from retrysafe.messaging.brokers.checks import UNREACHABLE, WINDOW, BrokerExamination
from retrysafe.messaging.brokers.registry import spec_of
from retrysafe.protocol.checks import Facts


def examination_of(url: str) -> BrokerExamination:
    """The checks of the kind of broker that a URL leads to. Raises `ConfigurationError` for one that has none."""
    spec = spec_of(url)
    if not spec.checks:
        raise ConfigurationError(f"--broker {without_password(url)}: there are no checks for {spec.title}.")
    examination: BrokerExamination = spec.load(spec.checks)
    return examination


def examine(
    url: str,
    topics: tuple[str, ...],
    within: float,
    windows: Mapping[str, float],
    consumed_by: Mapping[str, frozenset[str]] = {},
) -> list[Diagnosis]:
    """Diagnose a broker and these topics. One that does not answer in time has that as its finding.

    ``windows``: for how many seconds inboxes remember a message, by the names of their boundaries.
    ``consumed_by``: which of these have the inboxes of a topic; of a topic that is not in it, any may.
    """
    name, examination = without_password(url), examination_of(url)
    groups: dict[frozenset[str] | None, list[str]] = {}
    for topic in topics:
        groups.setdefault(consumed_by.get(topic), []).append(topic)

    def ask() -> tuple[Facts, list[Facts]]:
        """Ask for the facts of all topics and of each group; the queues need not have the topics' names."""
        every = examination.facts(url, topics)
        alone = len(groups) == 1
        return every, [every if alone else examination.facts(url, tuple(group)) for group in groups.values()]

    try:
        facts, parts = run_within(ask, within)
    except TimeoutError:
        return judge((UNREACHABLE,), {"unreachable": f"It did not answer within {within:g} s."}, name)
    except RetrysafeError as error:
        return judge((UNREACHABLE,), {"unreachable": error.detail or str(error)}, name)
    except Exception as error:  # noqa: BLE001 - whatever its client raises is a finding
        said = f"{type(error).__name__} when it was asked."
        return judge((UNREACHABLE,), {"unreachable": said}, name)
    found = judge(examination.checks, facts, name)
    for boundaries, part in zip(groups, parts, strict=True):
        compared = {one: window for one, window in windows.items() if boundaries is None or one in boundaries}
        found += _window(examination.kept(part), compared, name, named=boundaries is not None)
    return found


def _window(kept: Mapping[str, float], windows: Mapping[str, float], name: str, *, named: bool) -> list[Diagnosis]:
    needed = max(kept.values(), default=0.0)
    told = {"redelivered_for": kept, "windows": windows, "needed": needed, "named": named}
    return judge((WINDOW,), told, name)
