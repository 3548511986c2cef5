"""The backends' own descriptions are true."""

from __future__ import annotations

import importlib
import re
import tomllib
import traceback
from pathlib import Path

import pytest

from retrysafe import Boundary, ConfigurationError, layered
from retrysafe.backends import registry
from retrysafe.backends.registry import connect, stores
from retrysafe.backends.spec import BackendSpec
from retrysafe.backends.urls import without_password
from retrysafe.http.client.hosts import origin_of
from retrysafe.testing import age
from tests.tables import each_row

ROOT = Path(__file__).parents[2]


def test_every_folder_of_a_backend_is_registered() -> None:
    folders = {path.parent.name for path in (ROOT / "src/retrysafe/backends").glob("*/__init__.py")}
    assert folders - set(registry.BACKENDS) == {"migrations"}
    assert set(registry.BACKENDS) <= folders


@each_row("spec", list(registry.specs()), ids=lambda spec: str(spec.name))
def test_every_reference_leads_somewhere(spec: BackendSpec) -> None:
    functions = {*spec.schemes.values(), *spec.objects.values(), *spec.time_travel.values()}
    functions |= {reference for reference in (spec.absolute, spec.alias, *(spec.cache or ())) if reference}
    functions |= {*spec.steps.values()}
    assert all(callable(spec.load(reference)) for reference in functions)
    for kind in spec.objects:
        module, _, name = kind.partition(":")
        assert isinstance(getattr(importlib.import_module(module), name), type), kind


def test_every_extra_is_one_of_the_package() -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert {spec.extra for spec in registry.specs()} - {""} <= known.keys()


def test_a_store_is_named_in_few_files_outside_its_folder() -> None:
    """Of Cosmos DB's, as it came last. Files that are named like it are its own: a harness, a page, a server."""
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in ("src", "tests", "docs", "scripts")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".md"} and "cosmos" in _written(path).lower()
    }
    own = {path for path in found if "cosmos" in path}
    assert found - own - {"tests/stores/test_registry.py"} == {
        "docs/index.md",
        "scripts/serviceparts/catalogue.py",
        "src/retrysafe/backends/registry.py",
    }
    assert {path for path in own if not path.startswith("src/retrysafe/backends/cosmos/")} == {
        "docs/how-to/run-on-cosmos.md",
        "scripts/serviceparts/cosmos.py",
        "tests/doctor/setups/cosmos.py",
        "tests/faults/test_cosmos.py",
        "tests/stores/harnesses/cosmos.py",
    }


def _written(path: Path) -> str:
    """The part of a file that is written by hand: no page of the reference, and no generated part of another."""
    if "docs/reference" in path.as_posix():
        return ""
    return _GENERATED.sub("", path.read_text(encoding="utf-8"))


_GENERATED = re.compile(r"<!-- generated: .*?<!-- end of generated part -->", re.DOTALL)


def test_no_scheme_and_no_type_belongs_to_two() -> None:
    for found in ([*spec.schemes] for spec in registry.specs()), ([*spec.objects] for spec in registry.specs()):
        names = [name for some in found for name in some]
        assert len(names) == len(set(names))


@each_row("store", stores(), ids=lambda store: str(store.capabilities.name))
def test_time_can_pass_in_every_store(store: type) -> None:
    assert age.dispatch(store) is not age.dispatch(object)


def test_a_library_that_is_missing_is_named_with_its_extra() -> None:
    spec = BackendSpec("tests", "tests", ("none:Store",), {}, {}, extra="dynamodb")
    with pytest.raises(ConfigurationError, match=r"pip install 'retrysafe\[dynamodb\]'"):
        spec.load("not_there:Store")


def test_an_object_that_is_no_store_is_told_what_would_be_one() -> None:
    with pytest.raises(ConfigurationError, match="a client of redis-py, a boto3 DynamoDB client or Table"):
        Boundary("shop", store=object())


@each_row("fast", ["sqlite:///fast.db", "memory://", "nonsense", registry.connect("memory://")])
def test_only_a_store_that_can_be_a_cache_is_a_fast_one(
    fast: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="only redis can be the fast store"):
        Boundary("shop", store=layered(fast, "sqlite:///truth.db", name="truth"))


@each_row("truth", ["memory://", layered("redis://a", "sqlite:///b.db", name="b")])
def test_the_truth_is_one_durable_store(truth: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="durable store of one layer"):
        Boundary("shop", store=layered("redis://localhost", truth, name="truth"))


@each_row(
    "url",
    [
        "nonsense://ada:hunter2@db/shop",
        "postgresql+nothing://ada:hunter2@db/shop",
        "postgresql://ada:hunter2%zz@db/shop",
        "postgresql://ada:hunter2@[::1/shop",
        "postgresql://ada:half/hunter2@db/shop",
        "postgresql+asyncpg://ada:hunter2@db:port/shop",
        "mysql://ada:half/hunter2@db/shop",
        "mysql://ada:hunter2@db:99999/shop",
        "redis://ada:hunter2@db:port/0",
        "redis+cluster://ada:hunter2@one:1,two:port",
        "sqlite://ada:hunter2@db/shop",
        "dynamodb://ada:hunter2@db/shop",
        "host=db password=hunter2",
        "host=/run/db password=hunter2",
        "ada:hunter2@db",
        "ada:hunter2@db/shop.db",
        "redis://ada:hunter2#x@db:port/0",
        "mysql://ada:12?hunter2@db/shop",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        connect(url)
    assert "hunter2" not in "".join(traceback.format_exception(refused.value))


def test_a_password_is_never_shown() -> None:
    for url, shown in (
        (
            "postgresql://ada:p@ss:w/rd@db:5432/shop?sslmode=require",
            "postgresql://ada:***@db:5432/shop?sslmode=require",
        ),
        ("redis://:pw@db/0", "redis://:***@db/0"),
        ("postgresql://ada@db/shop?password=pw&x=1", "postgresql://ada@db/shop?password=***&x=1"),
        ("mysql://db:3306/shop", "mysql://db:3306/shop"),
        ("redis+sentinel://db:1,other:2/name/0?x=a@b", "redis+sentinel://db:1,other:2/name/0?x=a@b"),
        ("sqlite:////var/a:b@c.db", "sqlite:////var/a:b@c.db"),
        ("amqp://ada:p#q@host/", "amqp://ada:***@host/"),
        ("amqp://ada:p?q@host/", "amqp://ada:***@host/"),
        ("amqp://ada:12#p@host/", "amqp://ada:***@host/"),
        ("amqp://ada:p w@host/", "amqp://ada:***@host/"),
        ("postgresql://ada:p@q#r@db:5432/shop", "postgresql://ada:***@db:5432/shop"),
        ("nats://t0ken@one:4222,two", "nats://***@one:4222,two"),
        ("nats://t0#ken@one", "nats://***@one"),
        ("nats://one:4222,nats://t0ken@two", "nats://one:***@two"),
        ("tls://t0ken@one", "tls://***@one"),
        ("nats://ada:pw@one", "nats://ada:***@one"),
        ("ada:pw@db", "…@db"),
        ("ada:p=w@db", "…@db"),
        ("ada:pw@db://x", "…@db://x"),
        ("amqp:ada:pw@db", "…@db"),
        ("shop.db", "shop.db"),
        ("host=db password=p@w user=a@b", "host=db password=*** user=a@b"),
        ("host=db password='a b' user=ada", "host=db password=*** user=ada"),
    ):
        assert without_password(url) == shown


def test_the_origin_of_a_client_is_refused_without_its_password() -> None:
    for url in ("https://ada:hunter2#x@api", "ftp://ada:hunter2@api"):
        with pytest.raises(ConfigurationError) as refused:
            origin_of(url)
        assert "hunter2" not in "".join(traceback.format_exception(refused.value))
