"""Runs the cases on a server."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable

from retrysafe.conformance.capabilities import Capabilities, Mode, parse
from retrysafe.conformance.cases import CASES
from retrysafe.conformance.harness import Inapplicable, RuleBroken, ServerHarness, Unusable
from retrysafe.conformance.profiles import Profile
from retrysafe.conformance.report import Report, Result, Verdict
from retrysafe.conformance.rules import RULES
from retrysafe.conformance.wire import ServerAddress, Silent, WireConnection, WireRequest, address
from retrysafe.errors import ConfigurationError

TIMEOUT = 10.0
"""Seconds that a server may take for one step, unless told otherwise."""


def run(
    url: str,
    capabilities: Capabilities | None = None,
    *,
    mode: Mode | None = None,
    profile: Profile | None = None,
    only: Collection[str] = (),
    timeout: float = TIMEOUT,
) -> Report:
    """Check a server against the rules and report what became of each.

    Arguments:
        url: The server's address, ``http://HOST:PORT/PREFIX``, below which it offers the fixture.
        capabilities: What the server is and can; by default its own ``GET /fixture`` is read.
        mode: Overrides the mode that it declares.
        profile: The terms of a protocol, which go before what it declares; see `profiles.PROFILES`.
        only: The IDs of the rules to check; by default all.
        timeout: Seconds that the server may take for one step.

    Raises `ConfigurationError` if the server can't be reached, offers no fixture, or a rule is unknown.
    """
    to = address(url)
    if unknown := sorted(set(only) - set(RULES)):
        raise ConfigurationError(f"there is no rule {unknown[0]!r}; there are {', '.join(RULES)}")
    able = capabilities or read(to, timeout)
    if mode is not None:
        able = able.in_mode(mode)
    if profile is not None:
        able = profile.over(able)
    _reset(to, able, timeout)
    return Report(str(to), able, [_check(rule, to, able, timeout) for rule in RULES if not only or rule in only])


def check(rule: str, url: str, capabilities: Capabilities, *, timeout: float = TIMEOUT) -> Result:
    """Check one rule, as a test named by it would: ``assert result.verdict is not Verdict.FAILED, result``."""
    if rule not in RULES:
        raise ConfigurationError(f"there is no rule {rule!r}; there are {', '.join(RULES)}")
    return _check(rule, address(url), capabilities, timeout)


def read(to: ServerAddress, timeout: float = TIMEOUT) -> Capabilities:
    try:
        connection = WireConnection(to, timeout)
        try:
            response = connection.ask(WireRequest("GET", f"{to.prefix}/fixture"))
        finally:
            connection.close()
    except (OSError, Silent) as error:
        raise ConfigurationError(f"{to} can't be reached, or not read: {error}. Is it running?") from error
    if response.status != 200:
        raise ConfigurationError(
            f"{to}/fixture answered {response.status}: the server has to offer the conformance fixture, "
            "or its capabilities have to be given as a file"
        )
    try:
        return parse(json.loads(response.body))
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{to}/fixture answered no JSON: {error}") from error


def _reset(to: ServerAddress, able: Capabilities, timeout: float) -> None:
    harness = ServerHarness(to, able, timeout)
    try:
        harness.control("/reset")
    except (OSError, Silent, Unusable) as error:
        raise ConfigurationError(f"{to}: the fixture can't be reset: {error}") from error
    finally:
        harness.close()


def _check(rule: str, to: ServerAddress, able: Capabilities, timeout: float) -> Result:
    left_out = _result_of_omitted(rule, able)
    if left_out is not None:
        return left_out
    begun = time.perf_counter()
    harness = ServerHarness(to, able, timeout)
    try:
        result = _try(rule, harness)
    finally:
        harness.close()
    return result._replace(sent=harness.sent, seconds=time.perf_counter() - begun)


def _result_of_omitted(rule: str, able: Capabilities) -> Result | None:
    known = RULES[rule]
    if not known.visible:
        return Result(rule, Verdict.NOT_VISIBLE, f"{known.unseen}.", known.text)
    if able.mode not in known.modes:
        return Result(rule, Verdict.SKIPPED, f"means nothing in {able.mode} mode.", known.text)
    if rule in able.unsupported:
        return Result(rule, Verdict.SKIPPED, f"the server says: {able.unsupported[rule]}", known.text)
    if lacking := able.without(set(known.needs), "needs"):
        return Result(rule, Verdict.SKIPPED, lacking, known.text)
    return None


def _try(rule: str, harness: ServerHarness) -> Result:
    text = RULES[rule].text
    try:
        CASES[rule](harness)
    except RuleBroken as error:
        return Result(rule, Verdict.FAILED, _join(harness.notes), error.expected, error.came)
    except Inapplicable as error:
        return Result(rule, Verdict.SKIPPED, f"{error}.", text)
    except Unusable as error:
        return Result(rule, Verdict.FAILED, "the fixture, not the rule", "the fixture to keep its contract", str(error))
    except (Silent, OSError) as error:
        return Result(rule, Verdict.FAILED, _join(harness.notes), text, str(error) or type(error).__name__)
    return Result(rule, Verdict.PASSED, _join(harness.notes), text)


def _join(notes: Iterable[str]) -> str:
    return "; ".join(notes)
