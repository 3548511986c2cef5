"""Whether a failure means that a server could not prove who it is: rule C6."""

from __future__ import annotations

import ssl


def certificate_refused(error: BaseException) -> bool:
    """Whether a certificate was refused, as far down as client libraries have wrapped it."""
    waiting: list[object] = [error]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if not isinstance(one, BaseException) or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, ssl.SSLCertVerificationError) or type(one).__name__ == "CertificateError":
            return True
        waiting += [one.__cause__, one.__context__, getattr(one, "reason", None), *one.args]
    return False
