"""The queue that delivers at least once."""

from __future__ import annotations

from decimal import Decimal

from retrysafe_demo.broker import MOST_ERRORS, Broker, Delivery
from retrysafe_demo.payments import Payment
from retrysafe_demo.schedule import Fault
from retrysafe_demo.talk import Ending, How


def broker(**faults: tuple[Fault, ...]) -> Broker:
    return Broker([Payment(name, "x", Decimal(1), "EUR") for name in faults], faults)


def take(queue: Broker, now: float = 0.0, idle: int = 4, may_pause: bool = True) -> list[Delivery]:
    return queue.take(now, idle=idle, may_pause=may_pause)


def test_a_payment_is_delivered_until_somebody_is_done() -> None:
    queue = broker(a=())
    (delivery,) = take(queue)
    assert take(queue) == []
    for how in (How.RETRY, How.BROKEN, How.TIMEOUT):
        queue.ended(delivery, Ending(how), 0.0)
        assert take(queue) == [delivery]
    queue.again("a")
    assert take(queue) == [delivery]
    queue.ended(delivery, Ending(How.DONE), 0.0)
    queue.again("a")
    assert queue.is_empty
    assert queue.done == {"a"}


def test_a_fault_is_used_up_when_the_charge_was_reached() -> None:
    queue = broker(a=(Fault.LOST_REPLY, Fault.TIMEOUT))
    (first,) = take(queue)
    queue.ended(first, Ending(How.CONFLICT, retry_after=1.0), 0.0)
    assert queue.next_due() == 1.0
    assert take(queue, 0.9) == []
    (second,) = take(queue, 1.0)
    assert first.fault is second.fault is Fault.LOST_REPLY
    for expected in (Fault.TIMEOUT, None, None):
        queue.reached(second)
        queue.ended(second, Ending(How.RETRY), 1.0)
        (second,) = take(queue, 1.0)
        assert second.fault is expected


def test_a_pair_waits_for_two_workers_and_holds_up_the_rest() -> None:
    queue = broker(a=(Fault.CONCURRENT,), b=())
    assert take(queue, idle=1) == []
    pair = take(queue, idle=2)
    assert [delivery.payment.id for delivery in pair] == ["a", "a"]
    queue.ended(pair[0], Ending(How.CONFLICT, retry_after=1.0), 0.0)
    queue.ended(pair[1], Ending(How.CONFLICT, retry_after=1.0), 0.0)
    assert [delivery.payment.id for delivery in take(queue, 0.0)] == ["b"]
    assert len(take(queue, 1.0)) == 2
    assert queue.is_empty


def test_a_pause_lets_others_pass() -> None:
    queue = broker(a=(Fault.PAUSE_BEFORE_CHARGE,), b=())
    assert [delivery.payment.id for delivery in take(queue, may_pause=False)] == ["b"]
    assert take(queue, may_pause=False) == []
    assert [delivery.payment.id for delivery in take(queue)] == ["a"]


def test_redeliveries_go_first() -> None:
    queue = broker(a=(), b=(), c=())
    (delivery,) = take(queue)
    queue.ended(delivery, Ending(How.RETRY), 0.0)
    assert take(queue) == [delivery]


def test_a_turned_away_duplicate_is_answered_later_even_if_all_is_settled() -> None:
    queue = broker(a=(Fault.CONCURRENT,))
    winner, loser = take(queue)
    queue.reached(winner)
    queue.ended(loser, Ending(How.CONFLICT, retry_after=1.0), 0.0)
    queue.ended(winner, Ending(How.DONE), 0.0)
    (again,) = take(queue, 1.0)
    assert again.fault is None


def test_doubt_gives_way_to_knowledge_and_not_the_other_way_round() -> None:
    queue = broker(a=())
    (delivery,) = take(queue)
    queue.ended(delivery, Ending(How.UNCERTAIN), 0.0)
    assert (queue.uncertain, queue.settled) == ({"a"}, 1)
    queue.ended(delivery, Ending(How.BROKEN), 0.0)
    assert queue.is_empty
    for how in (How.DONE, How.UNCERTAIN):
        queue.ended(delivery, Ending(how), 0.0)
        assert (queue.uncertain, queue.done, queue.settled) == (set(), {"a"}, 1)


def test_unexpected_errors_are_not_retried_for_ever() -> None:
    queue = broker(a=())
    for _ in range(MOST_ERRORS):
        (delivery,) = take(queue, 1e9)
        queue.ended(delivery, Ending(How.FAILED), 0.0)
    assert queue.is_empty
    assert queue.settled == 0
