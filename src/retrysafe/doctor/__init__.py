"""`retrysafe doctor`: finds what is set up so that a promise is broken or weaker than it looks.

Checks are contributed by the folders of backends and brokers, and by `application`. Every store and broker has a
limited time to answer; one that does not is a finding.
"""

from __future__ import annotations

from retrysafe.doctor.diagnosing import diagnose
from retrysafe.doctor.diagnosis import Diagnosis
from retrysafe.doctor.startup import check_at_start
from retrysafe.doctor.waivers import Waiver, read_waivers
from retrysafe.protocol.checks import Check, Severity

__all__ = ["Check", "Diagnosis", "Severity", "Waiver", "check_at_start", "diagnose", "read_waivers"]
