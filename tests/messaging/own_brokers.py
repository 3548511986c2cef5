"""Brokers of a test's own, to be killed: each is run by scripts/services in a directory of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from retrysafe.messaging.brokers.kafka.properties import properties_of
from retrysafe.messaging.brokers.kafka.topics import admin
from tests.faults.helpers import ROOT
from tests.ports import free_port

_SHARED = Path(os.environ.get("RETRYSAFE_SCRATCH") or ROOT / ".services")
_UNPACKED = ("lib", "server")
"""The folders of the programs that were downloaded for services."""


class OwnBroker:
    """One node of a service, on free ports, with the programs of the shared one if they are there."""

    service: ClassVar[str]
    beside: ClassVar[int] = 0
    """The number of ports that it needs beside its first one."""

    def __init__(self, port: int | None = None, **environment: str) -> None:
        directory = tempfile.TemporaryDirectory(prefix=f"retrysafe-{self.service}-", ignore_cleanup_errors=True)
        self._directory, self.home = directory, Path(directory.name) / self.service
        self.home.mkdir()
        for programs in _UNPACKED:
            if (_SHARED / self.service / programs).is_dir():
                (self.home / programs).symlink_to((_SHARED / self.service / programs).resolve())
        self.port = port or free_port(self.beside)
        variable = f"RETRYSAFE_{self.service.upper().replace('-', '_')}_PORT"
        self._environment = {
            **os.environ,
            "RETRYSAFE_SCRATCH": directory.name,
            variable: str(self.port),
            **environment,
        }
        self.start()

    @property
    def url(self) -> str:
        raise NotImplementedError

    def start(self) -> None:
        """Start, and wait until it answers."""
        self._services("start")

    def kill(self) -> None:
        """SIGKILL, as a power cut would."""
        self._services("kill")

    def signal(self, signum: signal.Signals) -> None:
        """Stop it, or let it go on."""
        os.kill(json.loads((self.home / "process.json").read_text())["pid"], signum)

    def close(self) -> None:
        """Kill it, and remove its directory."""
        if (self.home / "process.json").exists():
            self.kill()
        self._directory.cleanup()

    def _services(self, verb: str) -> None:
        command = [sys.executable, str(ROOT / "scripts" / "services"), verb, self.service]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


class RabbitMQServer(OwnBroker):
    """A RabbitMQ. Of a killed node, 3.10 now and then elects no leader for a quorum queue: `stop` it instead.

    See https://github.com/rabbitmq/rabbitmq-server/issues/10070; nobody is handed anything of such a queue.
    """

    service = "rabbitmq"
    beside = 2  # Erlang's port mapper and its distribution

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def stop(self) -> None:
        """Let it end in order."""
        self._services("stop")


class RabbitMQ4Server(RabbitMQServer):
    """A RabbitMQ 4, which may be killed."""

    service = "rabbitmq-4"


class RedisServer(OwnBroker):
    """A Redis."""

    service = "redis"

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"


class KafkaServer(OwnBroker):
    """A Kafka."""

    service = "kafka"
    beside = 1  # the controller

    @property
    def url(self) -> str:
        return f"kafka://127.0.0.1:{self.port}"


class GuardedKafka(KafkaServer):
    """A Kafka where users log in, who may do only what they are given; it has a third port for them."""

    beside = 2

    def __init__(self, *users: str) -> None:
        super().__init__(RETRYSAFE_KAFKA_USERS=",".join(users))

    def url_of(self, user: str) -> str:
        """The URL for a user."""
        where = f"127.0.0.1:{self.port + 2}"
        return f"kafka://{user}:{user}@{where}?security.protocol=SASL_PLAINTEXT&sasl.mechanism=PLAIN"

    def allow(self, user: str, operation: AclOperation, kind: ResourceType, name: str) -> None:
        """Give a user one right."""
        given = AclBinding(
            kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, AclPermissionType.ALLOW
        )
        operator = admin(properties_of(self.url, {}))
        for made in operator.create_acls([given]).values():
            made.result()


class KafkaCluster:
    """Three Kafkas, each of which has every record; two must have it before it is confirmed. One of them is killed."""

    service = "kafka"

    def __init__(self) -> None:
        ports = [free_port(KafkaServer.beside) for _ in range(3)]
        nodes = {"RETRYSAFE_KAFKA_NODES": ",".join(map(str, ports))}
        with ThreadPoolExecutor() as threads:  # none of them answers before another one does
            self._nodes = list(threads.map(lambda port: KafkaServer(port, **nodes), ports))
        self.url = f"kafka://{','.join(f'127.0.0.1:{port}' for port in ports)}"

    def kill(self) -> None:
        """SIGKILL one of them."""
        self._nodes[0].kill()

    def start(self) -> None:
        """Start it again."""
        self._nodes[0].start()

    def close(self) -> None:
        """Kill them all, and remove their directories."""
        for node in self._nodes:
            node.close()


class NatsServer(OwnBroker):
    """A NATS."""

    service = "nats"

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"


class GuardedNats(NatsServer):
    """A NATS where users log in, each with the name as the password; who does not log in may do all."""

    def __init__(self, **permissions: str) -> None:
        users = [f"{{user: {user}, password: {user}, permissions: {may}}}" for user, may in permissions.items()]
        known = "\n".join(["{user: operator, password: operator}", *users])
        with tempfile.NamedTemporaryFile("w", suffix=".conf", encoding="utf-8") as settings:
            settings.write(f"no_auth_user: operator\nauthorization {{ users = [\n{known}\n] }}\n")
            settings.flush()
            super().__init__(RETRYSAFE_NATS_CONFIG=settings.name)

    def url_of(self, user: str) -> str:
        """The URL for a user."""
        return f"nats://{user}:{user}@127.0.0.1:{self.port}"


class DebeziumWorker(OwnBroker):
    """A worker of Kafka Connect that has Debezium's connector, beside a Kafka."""

    service = "debezium"

    @classmethod
    def is_installed(cls) -> bool:
        return (_SHARED / cls.service / "lib" / "installed.pom.xml").is_file()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class PubSubServer(OwnBroker):
    """The stand-in for Google Pub/Sub. It forgets everything when it is killed."""

    service = "pubsub"

    @property
    def url(self) -> str:
        return f"pubsub://tests?endpoint=http://127.0.0.1:{self.port}"


class ServiceBusServer(OwnBroker):
    """The stand-in for Azure Service Bus. It has written down what it has acknowledged."""

    service = "servicebus"

    @property
    def url(self) -> str:
        return f"servicebus://RootManageSharedAccessKey:tests@127.0.0.1:{self.port}?emulator=true"


class MqttServer(OwnBroker):
    """A mosquitto that writes each message down before it acknowledges it."""

    service = "mqtt"

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"
