"""Checks any server, in any language, against the HTTP contract, over real connections.

The server offers the conformance fixture (`docs/reference/conformance-fixture.md`); `run` checks it rule by rule.
`retrysafe.conformance.apps` has the fixture as ASGI and WSGI applications. `run_client` checks how a client retries.
"""

from __future__ import annotations

from retrysafe.conformance.capabilities import Capabilities, Mode
from retrysafe.conformance.clients import run_client
from retrysafe.conformance.report import Report, Result, Verdict
from retrysafe.conformance.rules import RULES, Rule
from retrysafe.conformance.running import check, run

__all__ = ["RULES", "Capabilities", "Mode", "Report", "Result", "Rule", "Verdict", "check", "run", "run_client"]
