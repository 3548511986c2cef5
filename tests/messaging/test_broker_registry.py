"""The brokers' own descriptions are true, and each broker is reached by its URL alone."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from uuid import uuid4

import pytest
from packaging.requirements import Requirement

from retrysafe import ConfigurationError
from retrysafe.backends.registry import connect
from retrysafe.cli import main
from retrysafe.messaging.brokers import registry
from retrysafe.messaging.brokers.base import Consumer
from retrysafe.messaging.brokers.spec import BrokerSpec
from retrysafe.protocol.messages import Delivery, Envelope, PublishStatus
from tests.conftest import served
from tests.messaging.harnesses import HARNESSES
from tests.messaging.harnesses.base import Place
from tests.tables import each_row

ROOT = Path(__file__).parents[2]
SPECS = {spec.name: spec for spec in registry.specs()}
WITHOUT_URL = {"memory"}


def test_every_folder_of_a_broker_is_registered() -> None:
    folders = {path.parent.name for path in (ROOT / "src/retrysafe/messaging/brokers").glob("*/__init__.py")}
    assert folders - WITHOUT_URL == set(registry.BROKERS)


def test_a_broker_is_named_in_few_files_that_others_share() -> None:
    """Beside files that have its name, tests of its own behaviour, and further rows of the proofs and the doctor."""
    name, others = "mqtt", ("tests/proving/", "tests/doctor/setups/sound.py")
    files = [path for room in ("src", "scripts", "tests") for path in (ROOT / room).rglob("*.py")]
    files += [ROOT / name for name in ("pyproject.toml", "mkdocs.yml", "compose.yaml", "CHANGELOG.md")]
    paths = [path.relative_to(ROOT).as_posix() for path in files]
    shared = [path for path in paths if name not in path and "/test_" not in path and not path.startswith(others)]
    assert {path for path in shared if name in (ROOT / path).read_text(encoding="utf-8").lower()} == {
        "src/retrysafe/messaging/brokers/registry.py",
        "scripts/serviceparts/catalogue.py",
        "pyproject.toml",
        "mkdocs.yml",
        "compose.yaml",
        "CHANGELOG.md",
    }


@each_row("spec", SPECS.values(), ids=SPECS)
def test_every_reference_and_every_name_leads_somewhere(spec: BrokerSpec) -> None:
    assert callable(spec.load(spec.broker))
    assert callable(spec.load(spec.publisher))
    assert callable(spec.load(spec.consumer))
    package = sys.modules[spec.package]
    assert all(getattr(package, name) is not None for name in package.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = package.nonsense


def test_every_extra_is_one_of_the_package() -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert {spec.extra for spec in SPECS.values()} - {""} <= known.keys()


def test_the_extra_of_nats_brings_what_credentials_are_signed_with() -> None:
    """The client library has it as an extra of its own."""
    (needed,) = (Requirement(one) for one in metadata.requires("nats-py") or () if Requirement(one).name == "nkeys")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (client,) = map(Requirement, project["optional-dependencies"]["nats"])
    assert needed.marker is not None
    assert any(needed.marker.evaluate({"extra": extra}) for extra in client.extras)


def test_no_scheme_belongs_to_two() -> None:
    schemes = [scheme for spec in SPECS.values() for scheme in spec.schemes]
    assert len(schemes) == len(set(schemes))


@pytest.mark.slow
def test_the_registry_needs_no_library() -> None:
    """As the help of the command line is read where none is installed."""
    source = "import sys\nfrom retrysafe.messaging.brokers import registry\nlist(registry.specs())\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", source], check=True, capture_output=True, text=True)
    libraries = {harness.library for harness in HARNESSES.values()} - {""}
    assert libraries.isdisjoint(done.stdout.split())
    assert len(libraries) == len({spec.extra for spec in SPECS.values()} - {""})


def test_a_library_that_is_missing_is_named_with_its_extra() -> None:
    spec = BrokerSpec("tests", "A broker", (), "", "", extra="rabbitmq")
    with pytest.raises(ConfigurationError, match=r"A broker needs .* pip install 'retrysafe\[rabbitmq\]'"):
        spec.load("not_there:Publisher")


@each_row("url", ["ftp://localhost", "broker.db", ""])
def test_a_url_that_no_broker_has_is_refused(url: str) -> None:
    with pytest.raises(
        ConfigurationError,
        match="known are kafka://, mqtt://, mqtts://, nats://, tls://, pubsub://, amqp://, amqps://, "
        "redis://, rediss://, servicebus://, sqlite://, sqs://, sns://",
    ):
        registry.broker_at(url, name="shop")


@each_row("url", ["sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite:///a.db?x=1"])
def test_a_broker_in_a_file_needs_its_path(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"write sqlite:///relative\.db"):
        registry.broker_at(url, name="shop")


@each_row(
    ("options", "complaint"),
    [
        (["--exchange", "orders"], "--exchange is for RabbitMQ; --broker is SQLite"),
        (["--length", "10"], "--length is for Redis Streams; --broker is SQLite"),
        (
            ["--partitions", "4"],
            "--partitions is for MQTT, NATS, RabbitMQ, Redis Streams and Azure Service Bus; --broker is SQLite",
        ),
    ],
)
def test_an_option_of_another_broker_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], complaint: str
) -> None:
    connect(f"sqlite:///{tmp_path}/shop.db").migrate()
    where = ["--store", f"sqlite:///{tmp_path}/shop.db", "--broker", f"sqlite:///{tmp_path}/broker.db"]
    assert main(["relay", "--once", *where, *options]) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("kind", [name for name, harness in HARNESSES.items() if harness.left is not None])
async def test_each_group_gets_every_message_of_a_broker(kind: str, request: pytest.FixtureRequest) -> None:
    """The arguments of `declare`, `publisher` and `consumer` are enough for them to meet."""
    harness, name = HARNESSES[kind], f"tests-{uuid4().hex}"
    served(request, harness.service)
    assert harness.left is not None
    assert harness.remove is not None
    at = Place(harness.url(request.getfixturevalue("tmp_path")), name, "orders", "stock", 2)
    broker = registry.broker_at(at.url, name=name, partitions=2, lease="2s")
    consumers = [broker.consumer(at.topic, group) for group in ("stock", "mail")]
    await broker.declare([at.topic], ["stock", "mail"])
    publisher = broker.publisher()
    sent = [Envelope(str(n), "orders", str(n), "placed", "/shop", None, {}, b"", "text/plain") for n in range(4)]
    try:
        assert [one.status for one in await publisher.publish(sent)] == [PublishStatus.ACKED] * len(sent)
        for consumer in consumers:
            assert await received(consumer, len(sent)) == {one.id for one in sent}
            await consumer.aclose()
        assert await harness.left(at) == 0
    finally:
        for closing in (publisher, *consumers):
            await closing.aclose()
        for group in ("stock", "mail"):
            await harness.remove(at._replace(group=group))


async def received(consumer: Consumer, number: int) -> set[str]:
    """The ids of so many messages, which are settled."""
    found: list[Delivery] = []
    async with asyncio.timeout(20):
        while len(found) < number:
            found += await consumer.receive(number, 1.0)
    await consumer.ack(found)
    return {one.envelope.id for one in found}
