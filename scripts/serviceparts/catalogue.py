"""Every service there is."""

from __future__ import annotations

from serviceparts.aws import ElasticMQ, Ministack
from serviceparts.browser import Chromium
from serviceparts.cosmos import CosmosDBServer
from serviceparts.debezium import Debezium
from serviceparts.dynamodb import DynamoDB
from serviceparts.kafka import Kafka
from serviceparts.mongodb import SecantusDB
from serviceparts.mqtt import Mosquitto
from serviceparts.mysql import MariaDB, MySQL8, MySQL9
from serviceparts.nats import Nats
from serviceparts.postgresql import PostgreSQL, PostgreSQL18
from serviceparts.prometheus import Prometheus
from serviceparts.pubsub import PubSub
from serviceparts.rabbitmq import RabbitMQ, RabbitMQ4
from serviceparts.redis import Redis, Redis8, RedisCluster, RedisSentinel, Valkey9
from serviceparts.service import Service
from serviceparts.servicebus import ServiceBus

_FIRST = (
    *(PostgreSQL(), MariaDB(), Redis(), RedisCluster(), RedisSentinel(), DynamoDB(), SecantusDB()),
    *(
        CosmosDBServer(),
        RabbitMQ(),
        Kafka(),
        Nats(),
        Mosquitto(),
        ElasticMQ(),
        Ministack(),
        PubSub(),
        ServiceBus(),
        Debezium(),
        Prometheus(),
        Chromium(),
    ),
)
_OTHER_VERSIONS = (PostgreSQL18(), MySQL8(), MySQL9(), Redis8(), Valkey9(), RabbitMQ4())
SERVICES: dict[str, Service] = {service.name: service for service in (*_FIRST, *_OTHER_VERSIONS)}
