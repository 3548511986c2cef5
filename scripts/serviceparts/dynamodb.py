"""DynamoDB Local."""

from __future__ import annotations

import http.client
import shutil

from serviceparts.java import JavaService
from serviceparts.places import CHECKOUT, LOOPBACK


class DynamoDB(JavaService):
    """DynamoDB Local, in memory: it forgets its tables whenever it stops.

    It has no option for the address it listens on, and takes them all; where Java can compile, a few lines of
    ours keep it to the loopback address.
    """

    name = "dynamodb"
    default_port = 18000
    POM = CHECKOUT / "scripts" / "dynamodb-local.pom.xml"
    MAIN = "software.amazon.dynamodb.services.local.main.ServerRunner"
    LOOPBACK_MAIN = CHECKOUT / "scripts" / "DynamoDBOnLoopback.java"

    def prepare(self) -> None:
        pass

    def command(self) -> list[str]:
        main = str(self.LOOPBACK_MAIN) if shutil.which("javac") else self.MAIN
        java = ["java", f"-Djava.library.path={self.jars}", "-cp", f"{self.jars}/*", main]
        return [*java, "-inMemory", "-sharedDb", "-disableTelemetry", "-port", str(self.port)]

    def ready(self) -> bool:
        headers = {
            "Authorization": "AWS4-HMAC-SHA256 Credential=local/20200101/local/dynamodb/aws4_request, "
            "SignedHeaders=host, Signature=0",
            "Content-Type": "application/x-amz-json-1.0",
            "X-Amz-Target": "DynamoDB_20120810.ListTables",
        }
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=5)
        try:
            connection.request("POST", "/", body="{}", headers=headers)
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def url(self, port: int) -> str:
        return f"http://{LOOPBACK}:{port}"
