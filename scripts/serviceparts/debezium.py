"""Debezium's connector for PostgreSQL, in a worker of Kafka Connect."""

from __future__ import annotations

import http.client

from serviceparts.java import JavaService
from serviceparts.kafka import Kafka
from serviceparts.places import CHECKOUT, LOOPBACK


class Debezium(JavaService):
    """A worker of Kafka Connect beside the Kafka of the tests; connectors are given to it over HTTP.

    It forgets its connectors whenever it stops, and remembers up to where they have read.
    """

    name = "debezium"
    default_port = 14083
    of_tests = True
    POM = CHECKOUT / "scripts" / "debezium.pom.xml"

    def settings(self) -> dict[str, str]:
        """Return the contents of worker.properties."""
        return {
            "bootstrap.servers": f"{LOOPBACK}:{Kafka().port}",
            "listeners": f"http://{LOOPBACK}:{self.port}",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
            "offset.storage.file.filename": str(self.home / "offsets"),
            "plugin.discovery": "service_load",  # to look into every jar takes seconds
        }

    def prepare(self) -> None:
        properties = self.home / "worker.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in self.settings().items()))

    def command(self) -> list[str]:
        small = ["-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=48m"]
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        return ["java", *small, "-cp", f"{self.jars}/*", main, str(self.home / "worker.properties")]

    def ready(self) -> bool:
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=5)
        try:
            connection.request("GET", "/connectors")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def url(self, port: int) -> str:
        return f"http://{LOOPBACK}:{port}"
