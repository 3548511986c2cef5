"""A RabbitMQ of a test's own, to be killed."""

from __future__ import annotations

from tests.messaging.service_servers import ServiceServer


class RabbitMQServer(ServiceServer):
    """One node."""

    def __init__(self) -> None:
        super().__init__("rabbitmq", beside=2)  # Erlang's port mapper and its distribution have the next two ports

    def stop(self) -> None:
        """Let it end in order: of a killed node, RabbitMQ 3.10 now and then elects no leader for a quorum queue.

        See https://github.com/rabbitmq/rabbitmq-server/issues/10070; nobody is handed anything of such a queue.
        """
        self._services("stop", "rabbitmq")
