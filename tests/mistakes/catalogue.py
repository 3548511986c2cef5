"""Mistakes of the first hour: what somebody writes, and the part of the error that names what to write instead."""

from __future__ import annotations

from typing import NamedTuple


class Mistake(NamedTuple):
    """A mistake; its code runs in an empty directory, after `PRELUDE`."""

    what: str
    code: str
    fix: str
    """A part of the error's text; "…" stands for what differs from machine to machine."""
    error: str = "ConfigurationError"
    without: str = ""
    """Libraries that are not installed."""


PRELUDE = """
import asyncio, sqlite3
from retrysafe import Boundary, current
from retrysafe.messaging import Inbox, Outbox, Relay

def boundary(store="memory://", **options):
    return Boundary("shop", store=store, observers=(), **options)

def file(**options):
    return boundary("sqlite:///shop.db", **options)
"""

_BOUNDARY = "Write boundary = Boundary('shop', store=…), where store= is a URL, an engine, a sessionmaker or a pool"
_AUTOCOMMIT = "Begin a transaction first, and pass the connection inside it"

_STORES = [
    Mistake("a path", 'boundary("shop.db")', "write store='sqlite:///shop.db'"),
    Mistake(
        "`create_engine` with a driver for async code",
        'import sqlalchemy; boundary(sqlalchemy.create_engine("postgresql+asyncpg://shop@localhost/shop"))',
        "make it by create_async_engine",
    ),
    Mistake("a URL of an unknown kind", 'boundary("cassandra://localhost/shop")', "known are …postgresql://"),
    Mistake("a word, without Django", 'boundary("shop")', "A file is sqlite:///its-path", without="django"),
    Mistake("a `Path`", 'import pathlib; boundary(pathlib.Path("shop.db"))', "store=f'sqlite:///{path}'"),
    Mistake(
        "an environment variable that is not set",
        'import os; boundary(os.environ.get("SHOP_DATABASE_URL"))',
        "is the environment variable or setting that it comes from set?",
    ),
    Mistake(
        "a sessionmaker without an engine",
        "from sqlalchemy.orm import sessionmaker; boundary(sessionmaker())",
        "make it with sessionmaker(engine)",
    ),
    Mistake(
        "a session", "from sqlalchemy.orm import Session; boundary(Session())", "a SQLAlchemy engine or sessionmaker"
    ),
    Mistake("an open connection", 'boundary(sqlite3.connect("shop.db"))', "expected a URL, a SQLAlchemy engine"),
    Mistake("SQLite in memory", 'boundary("sqlite:///:memory:")', "for memory, memory://"),
    Mistake(
        "an engine on SQLite in memory",
        'import sqlalchemy; boundary(sqlalchemy.create_engine("sqlite://"))',
        "for tests, memory:// or a temporary file",
    ),
    Mistake(
        "a file whose directory is missing",
        'boundary("sqlite:///data/shop.db")',
        "Create it (mkdir -p …/data)",
        "StoreMisconfigured",
    ),
    Mistake(
        "a file that is no database",
        'import pathlib; pathlib.Path("shop.db").write_text("order 1 " * 99); file()',
        "name another one in store=",
        "StoreMisconfigured",
    ),
    Mistake(
        "a store without its tables",
        'b = file(); sqlite3.connect("shop.db").execute("DROP TABLE retrysafe_schema"); b.check()',
        "Run:  retrysafe migrate --store sqlite:///…/shop.db",
        "SchemaOutdated",
    ),
]

_BOUNDARIES = [
    Mistake("no name", 'Boundary("", store="memory://")', "as in Boundary('shop', store=…)"),
    Mistake("a window in words", 'boundary(window="1 day")', 'write 30, "30s", "5m" or "48h"'),
    Mistake("a negative lease", "boundary(lease=-1)", "must be longer than zero"),
    Mistake("no lease", "boundary(lease=None)", 'write 30, "30s", "5m" or "48h"'),
    Mistake("a lease of zero", "boundary(lease=0)", "must be longer than zero"),
    Mistake(
        "a memory shorter than the window", 'boundary(window="24h", memory="1h")', "at least as long as its result"
    ),
    Mistake("`effects` misspelt", 'boundary(effects="transactionl")', "expected one of transactional, keyed, external"),
    Mistake(
        "transactions in memory",
        'boundary(effects="transactional")',
        "as store=, or effects='keyed' or 'external'",
    ),
    Mistake("`concurrency` as a word", 'boundary(concurrency="wait")', "reject() or wait(seconds), called"),
    Mistake("`permanent` as an error", 'boundary(permanent=ValueError("no"))', "such as (ValueError, KeyError)"),
    Mistake("`permanent` as text", 'boundary(permanent="ValueError")', "such as (ValueError, KeyError)"),
    Mistake(
        "one observer in place of a list",
        'Boundary("shop", store="memory://", observers=print)',
        "give a list of functions",
    ),
    Mistake(
        "a codec that is a class", "from retrysafe import JSONCodec; boundary(codec=JSONCodec)", "such as JSONCodec()"
    ),
    Mistake(
        "`pickle` as codec", "import pickle; boundary(codec=pickle)", "encode(value, annotation) and decode(stored"
    ),
    Mistake("a probe that is no function", 'boundary(probe="SELECT 1")', "probe= is a function that takes a claim"),
    Mistake("a number as the secret", "boundary(secret=1234)", "secret= is text or bytes"),
    Mistake("a number as the scope", "boundary(scope=7)", 'give text such as "green", or a function without arguments'),
    Mistake(
        "a scope that is empty",
        'import os; boundary(scope=os.environ.get("SHOP_TENANT", ""))',
        "Is the environment variable or setting that it comes from set?",
    ),
    Mistake(
        "a scope that takes the request",
        "boundary(scope=lambda request: request.user)",
        "scope= takes 'request', and is called without arguments",
    ),
    Mistake(
        "a coroutine function as the scope",
        'async def tenant(): return "green"\nboundary(scope=tenant)',
        "scope= is a coroutine function, and is not awaited",
    ),
    Mistake("a scope that is not known", 'boundary(scope=lambda: None).claim("k")', "no tenant or principal is known"),
    Mistake("`quota` as text", 'boundary(quota="5/minute")', 'such as Quota(rate="100/1m", outstanding=1000)'),
]

_CLAIMS = [
    Mistake(
        "`@boundary.once` without parentheses",
        "@boundary().once\ndef charge(order_id): ...",
        "@boundary.once(key='order_id') above def charge(",
    ),
    Mistake("`once()` without a key", 'boundary().once(operation="charge")', "once() needs key="),
    Mistake(
        "a scope for `once()`",
        'boundary().once(key="order_id", scope="green")',
        "it takes the scope of its boundary: Boundary(…, scope=…) takes text such as",
    ),
    Mistake(
        "a key that is no argument",
        '@boundary().once(key="order")\ndef charge(order_id): ...',
        "the function has no argument 'order'; it has order_id",
    ),
    Mistake(
        "a number in place of the key's path",
        "@boundary().once(key=1)\ndef charge(order_id): ...",
        'is not a path such as "order.id"',
    ),
    Mistake(
        "`once()` above `@classmethod`",
        'class Till:\n    @boundary().once(key="n")\n    @classmethod\n    def ring(cls, n): ...',
        "put it below, next to the function",
    ),
    Mistake(
        "`once()` above a class",
        '@boundary().once(key="n")\nclass Order:\n    def __init__(self, n): ...',
        "put it above the method that does the work",
    ),
    Mistake("`once()` on something else", 'boundary().once(key="n")("charge")', "put it above a def"),
    Mistake("a lambda without a name", 'boundary().once(key="n")(lambda n: n)', "once() needs operation="),
    Mistake(
        "a generator function",
        '@boundary().once(key="n")\ndef lines(n): yield n',
        "once() guards functions and coroutines",
    ),
    Mistake(
        "a coroutine that nobody awaits",
        'async def pay(n): ...\n@boundary().once(key="n")\ndef charge(n): return pay(n)\ncharge(1)',
        "make it a coroutine function, and await there",
    ),
    Mistake(
        "a request as an argument",
        '@boundary().once(key="n")\ndef charge(n, request): ...\ncharge(1, object())',
        "Choose what counts as the payload with payload=",
    ),
    Mistake(
        "the same key for something else",
        'b = boundary()\n@b.once(key="n")\ndef charge(n, cents): ...\ncharge(1, 100); charge(1, 200)',
        "The payload differs in: cents",
        "KeyReused",
    ),
    Mistake(
        "a claim of a key inside a claim of it",
        'b = boundary()\nwith b.claim("k"), b.claim("k"): ...',
        "claimed by the operation that encloses this one",
        "InProgress",
    ),
    Mistake(
        "a closed boundary", 'b = boundary(); b.close()\nwith b.claim("k"): ...', "Boundary 'shop' has been closed"
    ),
    Mistake(
        "a key longer than 255 characters",
        'with boundary().claim("k" * 5000): ...',
        "has 1 to 255 characters; this one has 5000",
        "InvalidKey",
    ),
    Mistake(
        "`key_for()` of a number", 'with boundary().claim("k") as claim: claim.key_for(7)', "such as 'charge', not int"
    ),
    Mistake(
        "two functions under one operation",
        'b = boundary()\n@b.once(key="n", operation="pay")\ndef one(n): ...\n'
        '@b.once(key="n", operation="pay")\ndef two(n): ...',
        "Give one of them another operation=",
    ),
    Mistake("no key", 'with boundary().claim(""): ...', "Make one key per intended operation", "InvalidKey"),
    Mistake(
        "a float as the key", "with boundary().claim(1.5): ...", "must be a string, an int or a UUID", "InvalidKey"
    ),
    Mistake(
        "a payload that cannot be compared",
        'with boundary().claim("k", payload=object()): ...',
        "switch the check off: …without payload= of claim()",
    ),
    Mistake(
        "a result that cannot be stored",
        'with boundary().claim("k") as claim: claim.result = object()',
        "Return JSON types, datetime, Decimal, UUID or bytes",
        "ResultNotEncodable",
    ),
    Mistake(
        "an enum that no annotation names",
        'import enum\nwith boundary().claim("k") as claim: claim.result = enum.Enum("Size", "SMALL").SMALL',
        "``claim()`` as ``result_type=``",
        "ResultNotEncodable",
    ),
    Mistake(
        "a dataclass whose field was renamed",
        "from dataclasses import make_dataclass\nb = boundary()\n"
        "for field in ('number', 'no'):\n    Receipt = make_dataclass('Receipt', [(field, int)])\n"
        '    with b.claim("k", result_type=Receipt) as claim:\n'
        "        if not claim.replayed: claim.result = Receipt(1)",
        "Receipt has no field 'number': was it renamed or removed?…Nothing was run",
        "ResultUnreadable",
    ),
    Mistake(
        "a sync `with` that waits, on an event loop",
        "from retrysafe import wait\nasync def main():\n"
        '    with boundary(concurrency=wait(5)).claim("k"): ...\nasyncio.run(main())',
        "use 'async with' or a coroutine, or concurrency=reject()",
    ),
    Mistake(
        "a handler that commits",
        'with file(effects="transactional").claim("k") as claim: claim.tx.commit()',
        "The handler committed the boundary's transaction by itself",
        "OutcomeUnknown",
    ),
    Mistake(
        "a handler that rolls back",
        'with file(effects="transactional").claim("k") as claim: claim.tx.rollback()',
        "the handler rolled it back, or caught an error with which the database did",
    ),
    Mistake(
        "a cursor as `tx=`",
        'tx = sqlite3.connect("shop.db").cursor()\nwith file(effects="transactional").claim("k", tx=tx): ...',
        "expected a connection or session",
    ),
    Mistake(
        "the work done on a replay too",
        'b = boundary()\nfor n in range(2):\n    with b.claim("k") as claim: claim.result = n',
        "put the work under 'if not claim.replayed'",
    ),
    Mistake(
        "a result that is set after the block",
        'with boundary().claim("k") as claim: ...\nclaim.result = 1',
        "The stored outcome cannot change. Move this line into the block",
    ),
    Mistake(
        "a failure that is declared after the block",
        'with boundary().claim("k") as claim: ...\nclaim.fail(ValueError("no such card"))',
        "The stored outcome cannot change. Move this line into the block",
    ),
    Mistake(
        "a failure that is a text",
        'with boundary().claim("k") as claim: claim.fail("no such card")',
        "fail() takes an exception",
    ),
    Mistake(
        "a claim that is not entered",
        'claim = boundary().claim("k")\nif not claim.replayed: print("charged")',
        "Write: with boundary.claim(…) as claim:",
    ),
    Mistake(
        "a result of a claim that is not entered",
        'boundary().claim("k").result = 1',
        "so nothing is guarded",
    ),
    Mistake(
        "a claim entered twice",
        'c = boundary().claim("k")\nwith c: ...\nwith c: ...',
        "make a new one with .claim()",
    ),
    Mistake("`current()` outside a claim", "current()", "outside a guarded operation"),
    Mistake(
        "`with` on a store for async code",
        'with boundary("postgresql+asyncpg://localhost/shop").claim("k"): ...',
        "use 'async with' or a coroutine",
    ),
    Mistake(
        "`async with` on a store for sync code",
        "import sqlalchemy\nasync def main():\n"
        '    async with boundary(sqlalchemy.create_engine("sqlite:///shop.db")).claim("k"): ...\n'
        "asyncio.run(main())",
        "give a URL or an async engine or client",
    ),
    Mistake(
        "`tx=` in autocommit",
        'tx = sqlite3.connect("shop.db", isolation_level=None)\n'
        'with file(effects="transactional").claim("k", tx=tx): ...',
        _AUTOCOMMIT,
    ),
    Mistake(
        "`tx=` on another database",
        'with file(effects="transactional").claim("k", tx=sqlite3.connect("other.db")): ...',
        "Give a transaction on the database of the store",
    ),
    Mistake(
        "`tx=` with a lease",
        'with file().claim("k", tx=sqlite3.connect("shop.db")): ...',
        "tx= needs effects='transactional'",
    ),
    Mistake("an outcome misspelt", 'boundary().resolve("k", "done")', "expected one of completed, failed, released"),
]

_MESSAGES = [
    Mistake("an outbox in memory", 'Outbox("memory://", source="/shop")', "an outbox is in SQLite, PostgreSQL, MySQL"),
    Mistake("an outbox without a source", 'Outbox("sqlite:///shop.db", source="")', 'as in source="/shop/orders"'),
    Mistake(
        "a message outside a transaction",
        'tx = sqlite3.connect("shop.db", isolation_level=None)\n'
        'Outbox("sqlite:///shop.db", source="/shop").add(tx, "orders", 1)',
        _AUTOCOMMIT,
    ),
    Mistake(
        "a payload that is no JSON",
        'Outbox("sqlite:///shop.db", source="/shop").add(sqlite3.connect("shop.db"), "orders", object())',
        "Give JSON types, dataclasses, models or bytes",
        "MessageRefused",
    ),
    Mistake(
        "an outbox made inside a transaction",
        'b = boundary("sqlite:///shop.db?busy=10ms"); tx = sqlite3.connect("shop.db"); tx.execute("BEGIN IMMEDIATE")\n'
        'Outbox("sqlite:///shop.db?busy=10ms", source="/shop")',
        "Make the object before a transaction begins",
        "StoreUnavailable",
    ),
    Mistake(
        "a message with a URL as `tx=`",
        'Outbox("sqlite:///shop.db", source="/shop").add("sqlite:///shop.db", "orders", 1)',
        "Pass the open connection or session that does the work",
    ),
    Mistake(
        "a topic in the place of `tx=`",
        'Outbox("sqlite:///shop.db", source="/shop").add("orders", "orders.placed", 1)',
        "Pass the open connection or session that does the work",
        "ConfigurationError",
        "django",
    ),
    Mistake(
        "a relay with a broker's URL",
        'file(); Relay("sqlite:///shop.db", "amqp://localhost/")',
        "Give the publisher of a broker, such as RabbitMQPublisher(url)",
    ),
    Mistake(
        "a relay with the class of a publisher",
        'from retrysafe.messaging.brokers.memory import MemoryPublisher\nRelay("sqlite:///shop.db", MemoryPublisher)',
        "is the class MemoryPublisher: make one",
    ),
    Mistake(
        "`@inbox.handler` without parentheses",
        "@Inbox(file(effects='transactional')).handler\ndef reserve(message): ...",
        '@inbox.handler("inventory")',
    ),
    Mistake(
        "a subscription with a plain function",
        "from retrysafe.messaging import Subscription\nfrom retrysafe.messaging.brokers.memory import MemoryBroker\n"
        'Subscription(MemoryBroker().consumer("orders"), print)',
        'with @inbox.handler("inventory") above def handle(message)',
    ),
    Mistake(
        "a dictionary as a message",
        "@Inbox(file(effects='transactional')).handler('stock')\ndef reserve(message): ...\nreserve.handle({})",
        "takes an Envelope, not a dict: Envelope(id, topic, key",
    ),
    Mistake(
        "text as the payload of a message",
        "from retrysafe.messaging import Envelope\n"
        "@Inbox(file(effects='transactional')).handler('stock')\ndef reserve(message): ...\n"
        "reserve.handle(Envelope('m1', 'orders', 'k', 'placed.v1', '/shop', None, {}, '{}', 'application/json'))",
        "encode the text to UTF-8",
    ),
    Mistake(
        "a handler without an argument",
        "@Inbox(file(effects='transactional')).handler('stock')\ndef reserve(): ...",
        "The handler reserve is called with one argument",
    ),
    Mistake(
        "a number of attempts as text",
        "@Inbox(file(effects='transactional')).handler('stock', max_attempts='3')\ndef reserve(message): ...",
        "max_attempts=, max_crashes= and max_gaps= are numbers from 1",
    ),
    Mistake("an inbox on a store", 'Inbox("sqlite:///shop.db")', _BOUNDARY),
    Mistake("an inbox in memory", "Inbox(boundary())", "give dead_letter_store=, a database"),
    Mistake(
        "the outbox of a file that is not there",
        'from retrysafe.messaging.relay.operator import OutboxOperator\nOutboxOperator("sqlite:///shpo.db")',
        "shpo.db) does not exist. A boundary that uses it creates it",
    ),
]

_WEB = [
    Mistake(
        "a sessionmaker in place of a boundary",
        "from sqlalchemy.orm import sessionmaker\nfrom retrysafe.http.fastapi import Idempotency\n"
        'Idempotency(sessionmaker(), principal="shared")',
        _BOUNDARY,
    ),
    Mistake(
        "an option misspelt",
        'from retrysafe.http.fastapi import Idempotency\nIdempotency(boundary(), principal="shared", requird=True)',
        "requird= is no option; there are required, routes",
    ),
    Mistake(
        "a guard without `principal`",
        "from retrysafe.http.fastapi import Idempotency\nIdempotency(boundary())",
        "no client gets the response to another one's",
    ),
    Mistake(
        "`principal` as a word",
        'from retrysafe.http.fastapi import Idempotency\nIdempotency(boundary(), principal="everybody")',
        "a function of the request that returns the client's id",
    ),
    Mistake(
        "Flask's extension without a boundary",
        "from flask import Flask\nfrom retrysafe.http.flask import Idempotency\n"
        'Idempotency(Flask("shop"), principal="shared")',
        "give it there, or to init_app()",
    ),
    Mistake(
        "Flask's extension twice",
        "from flask import Flask\nfrom retrysafe.http.flask import Idempotency\n"
        'app = Flask("shop")\nIdempotency(app, boundary(), principal="shared")\n'
        'Idempotency(app, boundary(), principal="shared")',
        "a view may name its own boundary=",
    ),
    Mistake(
        "a receiver of webhooks on a store",
        'from retrysafe.webhooks import GitHub, Receiver\nReceiver("sqlite:///shop.db", GitHub("secret"))',
        _BOUNDARY,
    ),
    Mistake(
        "a secret in place of a scheme",
        'from retrysafe.webhooks import Receiver\nReceiver(boundary(window="14d"), "whsec_test")',
        "give the provider's scheme with its secret",
    ),
    Mistake(
        "a webhook's body as text",
        "from retrysafe.webhooks import GitHub, Receiver\n"
        "Receiver(boundary(window='14d'), GitHub('secret')).receive({}, '{}')",
        "give the exact bytes that were received",
    ),
    Mistake(
        "a handler of webhooks without an argument",
        "from retrysafe.webhooks import GitHub, Receiver\n"
        "@Receiver(boundary(window='14d'), GitHub('secret')).on('push')\ndef pushed(): ...",
        "The handler pushed is called with one argument",
    ),
    Mistake(
        "`@receiver.on` without parentheses",
        "from retrysafe.webhooks import GitHub, Receiver\n"
        "@Receiver(boundary(window='14d'), GitHub('secret')).on\ndef pushed(event): ...",
        '@receiver.on("invoice.paid")',
    ),
    Mistake(
        "a webhook sent to a URL",
        "import httpx\nfrom retrysafe.webhooks.sender import Message, Sender\n"
        "Sender(httpx.Client()).send(Message.of('order.paid', {}, id='m1'), 'https://shop.example/hooks')",
        "expected Endpoint(url, secret)",
    ),
    Mistake(
        "a sender with an async client",
        "import httpx\nfrom retrysafe.webhooks.sender import Sender\nSender(httpx.AsyncClient())",
        "use AsyncSender and await it",
    ),
    Mistake(
        "an async sender with a sync client",
        "import httpx\nfrom retrysafe.webhooks.sender import AsyncSender\nAsyncSender(httpx.Client())",
        "use Sender, or give an httpx.AsyncClient",
    ),
    Mistake(
        "an `Idempotency` as the class of routes",
        "from fastapi import APIRouter\nfrom retrysafe.http.fastapi import Idempotency\n"
        "router = APIRouter(route_class=Idempotency(boundary(), principal='shared'))\n"
        "router.post('/payments')(print)",
        "write route_class=idempotency.route_class",
    ),
]

_STEPS = [
    Mistake(
        "a step without `await`",
        "async def mail(to): ...\n"
        'with file(effects="keyed").claim("A") as claim: claim.step("mail", mail, "ada").close()',
        "nothing of it was run: step 'mail'",
    ),
    Mistake(
        "two steps of one name",
        'with file(effects="keyed").claim("A") as claim:\n    for who in "ab": claim.step("bill", str, who)',
        "give each of them a name of its own, or each=",
    ),
    Mistake(
        "a step inside a step",
        'with file(effects="keyed").claim("A") as claim, claim.step("outer"): claim.step("inner", str)',
        "put them one after the other",
    ),
    Mistake(
        "a step in a transactional claim",
        'with file(effects="transactional").claim("A") as claim: claim.step("bill", str)',
        "Steps are for effects='keyed' or 'external'",
    ),
    Mistake(
        "a step beside your own open transaction on its file",
        'busy = boundary("sqlite:///shop.db?busy=50ms", effects="keyed")\ndb = sqlite3.connect("shop.db")\n'
        'db.execute("CREATE TABLE orders (id)")\n'
        'with busy.claim("A") as claim, db:\n'
        '    db.execute("INSERT INTO orders VALUES (1)")\n    claim.step("bill", str)',
        "if it is an open one of yours, give it as tx=",
        "StoreUnavailable",
    ),
]

_BELOW = {"fastapi": "starlette", "rest_framework": "django asgiref"}
"""The libraries that are missing with another one, too, where nothing is installed."""
_LIBRARIES = [
    *(
        Mistake(f"{library} is missing", f'boundary("{url}")', f"pip install 'retrysafe[{extra}]'", without=library)
        for library, url, extra in (
            ("psycopg", "postgresql://localhost/shop", "psycopg"),
            ("asyncpg", "postgresql+asyncpg://localhost/shop", "asyncpg"),
            ("pymysql", "mysql://localhost/shop", "mysql"),
            ("redis", "redis://localhost/0", "redis"),
        )
    ),
    *(
        Mistake(
            f"{library} is missing",
            f"import retrysafe.{module}",
            f"pip install 'retrysafe[{extra}]'",
            "ModuleNotFoundError",
            without=f"{library} {_BELOW.get(library, '')}",
        )
        for library, module, extra in (
            ("fastapi", "http.fastapi", "fastapi"),
            ("starlette", "http.starlette", "starlette"),
            ("litestar", "http.litestar", "litestar"),
            ("flask", "http.flask", "flask"),
            ("aiohttp", "http.aiohttp", "aiohttp"),
            ("django", "http.django", "django"),
            ("rest_framework", "http.drf", "drf"),
            ("grpc", "http.grpc", "grpc"),
            ("httpx", "http.client.httpx", "httpx"),
            ("requests", "http.client.requests", "requests"),
            ("opentelemetry", "observability.otel", "otel"),
            ("faststream", "messaging.brokers.faststream", "faststream"),
        )
    ),
]

MISTAKES = {
    "The store": _STORES,
    "The boundary": _BOUNDARIES,
    "Functions and claims": _CLAIMS,
    "Steps": _STEPS,
    "Messages": _MESSAGES,
    "HTTP and webhooks": _WEB,
    "Libraries": _LIBRARIES,
}
