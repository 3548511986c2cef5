"""The commits of a partition, and their effect on its next owner."""

from __future__ import annotations

import random

from retrysafe.messaging.brokers.kafka.progress import OffsetCommit, Progress
from tests.tables import each_row


def received(progress: Progress, *offsets: int) -> list[int]:
    """Those that are to be handled."""
    return [offset for offset in offsets if progress.receive(offset)]


def test_the_commit_is_the_first_unsettled_message() -> None:
    progress = Progress(10, None, 5)
    assert received(progress, 10, 11, 13, 14) == [10, 11, 13, 14]  # 12 is none: a mark of a transaction, or compacted
    assert progress.commit().offset == 10
    for offset in (11, 14, 13):
        progress.settle(offset)
    assert progress.commit().offset == 10
    progress.settle(10)
    assert progress.commit().offset == 15
    assert progress.ahead == 0


def test_the_next_owner_is_told_of_settled_and_handed_out_messages() -> None:
    progress = Progress(0, None, 3)
    received(progress, *range(10))
    for offset in (0, 2, 3, 7):
        progress.settle(offset)
    commit = progress.commit()
    assert commit == OffsetCommit(1, 13, "retrysafe 13 2-3 7")
    successor = Progress(commit.offset, commit.text, 3)
    assert received(successor, *range(1, 15)) == [1, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14]
    assert [offset for offset in range(1, 15) if successor.is_again(offset)] == list(range(1, 13))


def test_settled_messages_are_told_on_before_they_come_again() -> None:
    successor = Progress(1, "retrysafe 13 2-3 7-9", 3)
    received(successor, 1, 2)
    assert successor.commit(leaving=True) == OffsetCommit(1, 13, "retrysafe 13 2 3 7-9")
    successor.settle(1)
    assert successor.commit(leaving=True) == OffsetCommit(3, 13, "retrysafe 13 3 7-9")


def test_nothing_may_be_handed_out_before_a_commit_says_so() -> None:
    progress = Progress(5, None, 2)
    received(progress, 5)
    assert progress.granted == 0
    commit = progress.commit()
    assert progress.granted == 0
    progress.grant(commit)
    assert progress.granted == 8
    assert progress.commit(leaving=True).upto == 6


@each_row("text", ["", "of another client", "retrysafe", "retrysafe 5 7-", None, "retrysafe 5 " + "9" * 40])
def test_the_text_of_another_client_says_nothing(text: str | None) -> None:
    progress = Progress(3, text, 1)
    assert received(progress, 3, 4) == [3, 4]
    assert not progress.is_again(3)


def test_a_text_has_room_in_a_commit() -> None:
    progress = Progress(0, None, 1)
    received(progress, *range(10_000))
    for offset in range(1, 10_000, 2):
        progress.settle(offset)
    commit = progress.commit()
    assert len(commit.text) <= 4000
    successor = Progress(commit.offset, commit.text, 1)
    assert {0, 9998} <= set(received(successor, *range(10_000)))


def test_in_any_order_of_settling_nothing_is_lost_and_little_comes_again() -> None:
    chance = random.Random(7)
    for _ in range(200):
        settled: set[int] = set()
        start, text = 0, None
        for _ in range(5):
            progress = Progress(start, text, 4)
            handed = received(progress, *range(start, start + chance.randrange(1, 30)))
            assert settled.isdisjoint(handed)
            for offset in chance.sample(handed, chance.randint(0, len(handed))):
                progress.settle(offset)
                settled.add(offset)
            commit = progress.commit()
            assert set(range(commit.offset)) <= settled
            assert not {offset for offset in handed if offset >= commit.upto}
            start, text = commit.offset, commit.text
