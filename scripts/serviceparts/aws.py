"""The stand-ins for Amazon SQS and SNS: ElasticMQ, which has queues, and ministack, which has topics too."""

from __future__ import annotations

from serviceparts.installing import install_wheels, python_of
from serviceparts.java import JavaService
from serviceparts.places import CHECKOUT, LOOPBACK
from serviceparts.processes import answers_on
from serviceparts.service import Service

_SETTINGS = """
include classpath("application.conf")
node-address {{ protocol = http, host = "{host}", port = {port}, context-path = "" }}
rest-sqs {{ enabled = true, bind-port = {port}, bind-hostname = "{host}", sqs-limits = strict }}
rest-stats {{ enabled = false }}
messages-storage {{ enabled = false }}
"""


class ElasticMQ(JavaService):
    """Queues in memory: it forgets them whenever it stops."""

    name = "sqs"
    default_port = 14324
    POM = CHECKOUT / "scripts" / "elasticmq.pom.xml"

    def prepare(self) -> None:
        (self.home / "elasticmq.conf").write_text(_SETTINGS.format(host=LOOPBACK, port=self.port))

    def command(self) -> list[str]:
        small = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        settings = f"-Dconfig.file={self.home / 'elasticmq.conf'}"
        return ["java", *small, settings, "-cp", f"{self.jars}/*", "org.elasticmq.server.Main"]

    def ready(self) -> bool:
        return answers_on(self.port)

    def url(self, port: int) -> str:
        return f"sqs://?region=us-east-1&endpoint=http://{LOOPBACK}:{port}"


class Ministack(Service):
    """Queues and topics in memory, in a virtual environment of its own: it forgets them whenever it stops."""

    name = "sns"
    default_port = 14566
    PACKAGE = "ministack==1.5.33"

    def packages(self) -> list[str]:
        return []

    def install(self) -> None:
        install_wheels(self.PACKAGE, self.home / "server")

    def prepare(self) -> None:
        (self.home / "data").mkdir(exist_ok=True)

    def command(self) -> list[str]:
        settings = [f"GATEWAY_PORT={self.port}", f"MINISTACK_HOST={LOOPBACK}", f"PYTHONPATH={self.home / 'server'}"]
        return [
            "env",
            "-C",
            str(self.home / "data"),
            *settings,
            python_of(self.home / "server"),
            str(self.home / "server" / "bin" / "ministack"),
        ]

    def ready(self) -> bool:
        return answers_on(self.port)

    def url(self, port: int) -> str:
        return f"sns://?region=us-east-1&endpoint=http://{LOOPBACK}:{port}"
