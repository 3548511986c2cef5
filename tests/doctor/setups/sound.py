"""Sound set-ups: whatever is found of them is a false finding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager

from tests.doctor.setups import application, dynamodb, mqtt, mysql, postgresql, pubsub, rabbitmq, redis, servicebus, sqs
from tests.doctor.setups.form import Arguments, Ground, Making, Sound, migrated

Store = Callable[[Ground], AbstractContextManager[str]]


def _with(store: Store, *brokers: Making) -> Making:
    """The sound application, with its lock file, on a store, beside brokers."""

    @contextmanager
    def make(ground: Ground) -> Iterator[Arguments]:
        with store(ground) as url:
            text = application.SOUND.replace("sqlite:///shop.db", url)
            if not url.startswith(("sqlite:", "postgresql:", "mysql:")):
                text = text.replace('effects="transactional"', 'effects="keyed"')
            yield from _beside(list(brokers), ground, application.locked(ground, text))

    return make


def _beside(brokers: list[Making], ground: Ground, asked: Arguments) -> Iterator[Arguments]:
    if not brokers:
        yield asked
        return
    with brokers[0](ground) as further:
        yield from _beside(brokers[1:], ground, [*asked, *further])


@contextmanager
def _postgresql(ground: Ground) -> Iterator[str]:
    yield postgresql.database(ground)


@contextmanager
def _mysql(ground: Ground) -> Iterator[str]:
    yield mysql.database(ground.mariadb())


@contextmanager
def _redis(ground: Ground) -> Iterator[str]:
    with closing(redis.server(*redis.SOUND)) as made:
        yield made.url


@contextmanager
def _sqlite(ground: Ground) -> Iterator[str]:
    yield migrated(f"sqlite:///{ground.folder}/shop.db")


SOUND = (
    Sound("postgresql", "PostgreSQL, and a guarded application that has its lock file", _with(_postgresql)),
    Sound("redis", "Redis with AOF and `noeviction`, and such an application", _with(_redis)),
    Sound("sqlite", "SQLite, such an application, and queues of RabbitMQ", _with(_sqlite, rabbitmq.sound)),
    Sound("mysql", "MariaDB, such an application, and a FIFO queue of SQS", _with(_mysql, sqs.sound)),
    Sound("dynamodb", "DynamoDB, such an application, and mosquitto", _with(dynamodb.migrated_table, mqtt.sound)),
    Sound("sns", "SQLite, such an application, and a topic of SNS with its queue", _with(_sqlite, sqs.sound_topic)),
    Sound(
        "pubsub",
        "SQLite, such an application, and a topic of Pub/Sub with its subscription",
        _with(_sqlite, pubsub.sound),
    ),
    Sound(
        "servicebus",
        "SQLite, such an application, and a queue and a topic of Azure Service Bus",
        _with(_sqlite, servicebus.sound),
    ),
)
