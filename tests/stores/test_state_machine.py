"""Random histories of one key, on every store, against the transition table."""

from __future__ import annotations

from retrysafe.testing.suite import (
    test_random_histories_agree_with_the_table as test_random_histories_agree_with_the_table,
)
