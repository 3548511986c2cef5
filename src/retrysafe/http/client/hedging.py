"""Two copies of one request under way at once: which result counts. Rule C17.

The method is that of J. Dean and L. A. Barroso, "The Tail at Scale", Communications of the ACM, 2013.
"""

from __future__ import annotations

from collections.abc import Sequence

from retrysafe.http.client.hosts import Host
from retrysafe.http.client.results import Answer, Failure, Result, Verdict, judge


def decides(result: Result, host: Host | None) -> bool:
    """Whether a result counts although another copy is open: an answer, and not "another one is running"."""
    final = judge(result, host) in (Verdict.FINAL, Verdict.REDIRECT)
    return isinstance(result, Answer) and result.status != 409 and final


def best(results: Sequence[Result], host: Host | None) -> Result:
    """The result that counts when no copy is open any more."""

    def rank(result: Result) -> int:
        if isinstance(result, Failure):
            return 0
        if decides(result, host):
            return 3
        return 1 if result.status == 409 else 2

    return max(results, key=rank)
