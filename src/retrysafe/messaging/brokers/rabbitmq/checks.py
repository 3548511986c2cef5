"""The checks of RabbitMQ's queues.

AMQP does not tell the arguments of a queue. To declare a queue that is there, with other arguments than it has, changes
nothing: the broker refuses, and says which argument differs. A queue that is not there, or not any more, is not made
either: among the arguments is one that no quorum queue can be made with, and that is not compared.
"""

from __future__ import annotations

import re
from typing import Any

from aio_pika.exceptions import ChannelNotFoundEntity, ChannelPreconditionFailed
from aiormq.exceptions import ChannelAccessRefused, ChannelLockedResource

from retrysafe.messaging.brokers.checks import BrokerExamination, checks_of, error, note, warning
from retrysafe.messaging.brokers.rabbitmq.connecting import connect
from retrysafe.messaging.brokers.rabbitmq.topology import NEVER
from retrysafe.messaging.brokers.spec import declaring
from retrysafe.protocol.checks import Facts

_WITHIN = 4.0
_MOST_PARTITIONS = 256
_DIFFERS = re.compile(r"inequivalent arg '([^']+)'")
_ONLY_COMPARED = {"x-queue-type": "quorum", "x-delivery-limit": NEVER, "x-max-age": "of streams alone"}
_ALLOWED = {"x-single-active-consumer": True}
"""Arguments that a sound queue may have or lack, with the value that it may have."""


async def _gather(url: str, topics: tuple[str, ...]) -> Facts:
    async with await connect(url, timeout=_WITHIN) as connection:
        queues = [name for topic in topics for name in await _queues_of(connection, topic)]
        return {"differing": {name: await _difference(connection, name) for name in queues}}


async def _queues_of(connection: Any, topic: str) -> list[str]:
    if await _exists(connection, topic) or not await _exists(connection, f"{topic}.0"):
        return [topic]
    queues = [f"{topic}.0"]
    while len(queues) < _MOST_PARTITIONS and await _exists(connection, f"{topic}.{len(queues)}"):
        queues.append(f"{topic}.{len(queues)}")
    return queues


async def _exists(connection: Any, name: str) -> bool:
    try:
        await (await connection.channel()).declare_queue(name, passive=True)
    except ChannelNotFoundEntity:
        return False
    except ChannelLockedResource:
        pass
    return True


async def _difference(connection: Any, name: str) -> str:
    """The name of an argument in which a queue differs from that of `declare`, or "" for none.

    Or else: "missing", "exclusive" to another connection, or "refused" to this user.
    """
    if not await _exists(connection, name):
        return "missing"
    arguments: dict[str, Any] = {**_ONLY_COMPARED}
    while True:
        try:
            await (await connection.channel()).declare_queue(name, durable=True, arguments=arguments)
        except ChannelLockedResource:
            return "exclusive"
        except ChannelAccessRefused:
            return "refused"
        except ChannelPreconditionFailed as error:
            found = _DIFFERS.search(str(error))
            if found is None:
                if "invalid arg" in str(error):
                    return "missing"  # since it was looked for
                raise
            argument = found[1]
            if argument not in _ALLOWED or argument in arguments:
                return argument
            arguments[argument] = _ALLOWED[argument]
        else:
            return ""


CHECKS = checks_of(
    "how-to/rabbitmq.md",
    error(
        "rabbitmq-queue",
        "differing",
        lambda differs: differs == "missing",
        "Are the queues there?",
        "No queue {}.",
        f"Make them with  {declaring()}",
    ),
    warning(
        "rabbitmq-quorum",
        "differing",
        lambda differs: differs in ("x-queue-type", "type"),
        "Do messages survive the loss of a node?",
        "Not quorum queues: {}.",
        f"Declare a quorum queue under another name with  {declaring()}, bind it, and "
        "delete this one when it is empty.",
    ),
    error(
        "rabbitmq-durable",
        "differing",
        lambda differs: differs == "durable",
        "Do the queues survive a restart of the broker?",
        "Not durable: {}.",
        "Declare a durable queue under another name, bind it, and delete this one when it is empty.",
    ),
    error(
        "rabbitmq-exclusive",
        "differing",
        lambda differs: differs == "exclusive",
        "Do the queues outlive the connection that has declared them?",
        "Exclusive to another connection, and deleted with it: {}.",
        f"Delete it, and make a queue with  {declaring()}",
    ),
    note(
        "rabbitmq-permission",
        "differing",
        lambda differs: differs == "refused",
        "May the settings of the queues be found out?",
        "This user may not configure them, so that their settings are not known: {}.",
        "rabbitmqctl set_permissions for a user that may configure the queues; the doctor makes and changes none",
    ),
    error(
        "rabbitmq-dead-letters",
        "differing",
        lambda differs: differs == "x-delivery-limit",
        "Does a message that is given up end as a dead letter?",
        "The broker throws messages away after its delivery limit: {}.",
        "rabbitmqctl set_policy keep '^…$' '{{\"delivery-limit\": 2000000000}}' --apply-to quorum_queues, or give the "
        "queue x-dead-letter-exchange; the inbox counts attempts, and keeps dead letters",
    ),
)
EXAMINATION = BrokerExamination(CHECKS, _gather)
