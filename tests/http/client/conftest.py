"""A server, a clock, and clients of every library."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from retrysafe.http.client import Host, Journal, Retries
from tests.http.client.senders import SENDERS, Sender, Time
from tests.http.client.server import Server, running
from tests.http.observing import Recorder

Make = Callable[..., Sender]


@pytest.fixture
def server() -> Iterator[Server]:
    with running() as server:
        yield server


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def seen() -> Recorder:
    return Recorder()


@pytest.fixture(params=SENDERS)
def make(request: pytest.FixtureRequest, time: Time, server: Server, seen: Recorder) -> Iterator[Make]:
    """Makes clients of one library; the server is declared to honour keys, unless hosts= says otherwise."""
    made: list[Sender] = []
    journals: list[Journal] = []

    def make(
        *, refresh: Any = None, client: dict[str, Any] | None = None, timeout: float = 10, **choices: Any
    ) -> Sender:
        choices.setdefault("hosts", [Host(server.origin)])
        choices.setdefault("environment", time.environment)
        choices.setdefault("observers", [seen])
        if "journal" in choices:
            journals.append(choices["journal"])
        made.append(SENDERS[request.param](Retries(**choices), refresh, timeout, **(client or {})))
        return made[-1]

    yield make
    for sender in made:
        sender.close()
    for journal in journals:
        journal.close()


@pytest.fixture(scope="session")
def untrusted(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """TLS with a certificate that nobody has signed."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now - timedelta(days=1), now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(text + certificate.public_bytes(Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context
