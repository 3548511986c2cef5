"""Kafka."""

from __future__ import annotations

import os
import socket
import struct

from serviceparts.java import JavaService
from serviceparts.places import CHECKOUT, LOOPBACK


class Kafka(JavaService):
    """Kafka, one node that is broker and controller at once; the controller has the next port.

    With `RETRYSAFE_KAFKA_NODES`, the ports of all nodes of a cluster, it is one of those, and each record is on all.
    With `RETRYSAFE_KAFKA_USERS`, names separated by commas, the port behind the controller's is for users who log in,
    each with the name as the password, and who may do only what they are given; who comes to the first port may do all.

    Brokers remember a dead consumer, and a transaction of a dead producer, for as long as they are told: for tests it
    may be as short as a second. Its own session with the controller is longer: a node that a busy machine keeps from
    saying so in time that it lives is fenced, and nobody can use it until it has said so again.
    """

    name = "kafka"
    default_port = 17092
    POM = CHECKOUT / "scripts" / "kafka.pom.xml"
    CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"
    HEAP = "128m"
    API_VERSIONS = struct.pack(">hhih4s", 18, 0, 1, 4, b"test")
    """A request that a broker answers as soon as it serves clients: key, version, number, name of the client."""

    @property
    def nodes(self) -> list[int]:
        """The ports of the nodes of the cluster."""
        ports = os.environ.get(self.variable(after="_NODES")) or str(self.port)
        return [int(port) for port in ports.split(",")]

    @property
    def users(self) -> list[str]:
        """Those who log in."""
        return [name for name in os.environ.get(self.variable(after="_USERS"), "").split(",") if name]

    @property
    def listeners(self) -> str:
        """The address for clients."""
        logged_in = f",SASL_PLAINTEXT://{LOOPBACK}:{self.port + 2}" if self.users else ""
        return f"PLAINTEXT://{LOOPBACK}:{self.port}{logged_in}"

    def guarded(self) -> dict[str, str]:
        """Return the settings that let users log in, and use only their rights."""
        if not self.users:
            return {}
        known = " ".join(f'user_{name}="{name}"' for name in self.users)
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        return {
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{module} required {known};",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }

    def settings(self) -> dict[str, str]:
        """Return the contents of server.properties."""
        replicas = dict.fromkeys(
            (
                "default.replication.factor",
                "offsets.topic.replication.factor",
                "transaction.state.log.replication.factor",
                "share.coordinator.state.topic.replication.factor",
            ),
            str(len(self.nodes)),
        )
        in_sync = dict.fromkeys(
            ("min.insync.replicas", "transaction.state.log.min.isr", "share.coordinator.state.topic.min.isr"),
            str(len(self.nodes) // 2 + 1),
        )
        voters = [f"{number}@{LOOPBACK}:{port + 1}" for number, port in enumerate(self.nodes, 1)]
        few = dict.fromkeys(
            (
                "offsets.topic.num.partitions",
                "transaction.state.log.num.partitions",
                "share.coordinator.state.topic.num.partitions",
            ),
            "4",
        )
        return {
            **self.guarded(),
            "process.roles": "broker,controller",
            "node.id": str(self.nodes.index(self.port) + 1),
            "controller.quorum.voters": ",".join(voters),
            "listeners": f"{self.listeners},CONTROLLER://{LOOPBACK}:{self.port + 1}",
            "advertised.listeners": self.listeners,
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.home / "data"),
            **replicas,
            **in_sync,
            **few,
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "500",
            "broker.heartbeat.interval.ms": "500",
            "broker.session.timeout.ms": "9000" if len(self.nodes) == 1 else "4000",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
            "log.cleaner.dedupe.buffer.size": "4194304",  # the default does not fit into the heap
            "log.index.size.max.bytes": "1048576",  # of every partition, and mapped into memory
            "num.network.threads": "2",
            "num.io.threads": "2",
            "group.coordinator.threads": "1",
        }

    def prepare(self) -> None:
        properties = self.home / "server.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in self.settings().items()))
        if not (self.home / "data" / "meta.properties").exists():
            format_storage = ["kafka.tools.StorageTool", "format", "--cluster-id", self.CLUSTER]
            self.run_step([*self.java(), *format_storage, "--config", str(properties)], "")

    def java(self) -> list[str]:
        """A small Java, which starts soon."""
        memory = [f"-Xms{self.HEAP}", f"-Xmx{self.HEAP}", "-XX:ReservedCodeCacheSize=32m", "-XX:+UseSerialGC"]
        return ["java", *memory, "-XX:TieredStopAtLevel=1", "-cp", f"{self.jars}/*"]

    def command(self) -> list[str]:
        return [*self.java(), "kafka.Kafka", str(self.home / "server.properties")]

    def ready(self) -> bool:
        """Tell whether it answers clients: its port is open before it does."""
        try:
            with socket.create_connection((LOOPBACK, self.port), timeout=2) as connection:
                connection.sendall(struct.pack(">i", len(self.API_VERSIONS)) + self.API_VERSIONS)
                return len(connection.recv(8)) > 4
        except OSError:
            return False

    def url(self, port: int) -> str:
        return f"kafka://{LOOPBACK}:{port}"
