"""Two copies of one request under way at once: which result counts. Rule C17.

The method is that of J. Dean and L. A. Barroso, "The Tail at Scale", Communications of the ACM, 2013.
"""

from __future__ import annotations

from collections.abc import Sequence

from retrysafe.http.client.hosts import Host
from retrysafe.http.client.results import Answer, Failure, Kind, Result, Verdict, judge


def decides(result: Result) -> bool:
    """Whether a result counts although another copy is open: an answer that no other copy can contradict.

    A refusal may come from in front of the layer that knows keys, while the other copy is carried out.
    """
    return isinstance(result, Answer) and (result.is_replay or 200 <= result.status < 300)


def best(results: Sequence[Result], host: Host | None) -> Result:
    """The result that counts when no copy is open any more."""

    def rank(result: Result) -> int:
        if isinstance(result, Failure):
            return 1 if result.kind is Kind.AMBIGUOUS else 0
        if decides(result):
            return 5
        if result.status == 409:
            return 2
        return 3 if judge(result, host) is Verdict.RETRY else 4

    return max(results, key=rank)
