"""Breaks of the ledgers of streams: what keeps a batch from being written twice, or left out."""

from __future__ import annotations

from tests.proving.breaks import Break

OWN = "tests/streams/test_ledger.py::"

BREAKS = [
    Break(
        "the front of a batch that is written already is written again",
        "streams/ledger.py",
        "return max(span.first, found.next) if span.next > found.next else None",
        "return span.first if span.next > found.next else None",
        killed_by=(f"{OWN}test_a_span_is_written_once_and_what_overlaps_is_left_out[sqlite]",),
    ),
    Break(
        "who was taken over from goes on writing",
        "streams/ledger.py",
        "if epoch is not None and found.epoch != epoch:",
        "if False:",
        killed_by=(f"{OWN}test_who_was_taken_over_from_writes_nothing[sqlite]",),
    ),
    Break(
        "positions of another origin are taken for the same input",
        "streams/ledger.py",
        "if origin != found.origin:",
        "if False:",
        killed_by=(f"{OWN}test_another_origin_is_other_input[sqlite]",),
    ),
    Break(
        "a position is moved from wherever it is",
        "streams/positions.py",
        'f"{self._where} AND position = {self._mark} AND epoch = {self._mark}"',
        'f"{self._where} AND position <= position + {self._mark} AND epoch <= epoch + {self._mark}"',
        killed_by=(f"{OWN}test_of_those_who_write_the_same_span_at_once_one_does[postgresql]",),
    ),
    Break(
        "an exception leaves the position moved",
        "streams/ledger.py",
        "            connection.rollback()\n        except Exception:  # noqa",
        "            connection.commit()\n        except Exception:  # noqa",
        killed_by=(f"{OWN}test_an_exception_leaves_neither_and_goes_on[sqlite]",),
    ),
    Break(
        "a connection that has died is used for ever",
        "streams/ledger.py",
        "                connection.close()\n            self._connection = None",
        "                connection.close()",
        killed_by=(f"{OWN}test_a_connection_that_has_died_is_replaced[postgresql]",),
    ),
    Break(
        "a position in Kafka counts although its transaction was aborted",
        "messaging/brokers/kafka/ledger.py",
        '"isolation.level": "read_committed",\n            "enable.partition.eof"',
        '"isolation.level": "read_uncommitted",\n            "enable.partition.eof"',
        killed_by=(f"{OWN}test_a_position_of_an_aborted_transaction_does_not_count",),
    ),
    Break(
        "two sources are one to a collation",
        "streams/positions.py",
        "{named(source, 'source')}\".encode()",
        "{named(source, 'source')}\".casefold().encode()",
        killed_by=(f"{OWN}test_sources_do_not_know_each_other[sqlite]",),
    ),
]
