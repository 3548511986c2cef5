"""The rules: each reports its wrong example, and not its right one; names alone decide nothing."""

from __future__ import annotations

from pathlib import Path

from retrysafe.scan.findings import Finding, Rule
from retrysafe.scan.rules.catalogue import EVERY_RULE, RULES
from retrysafe.scan.scanner import scan
from tests.tables import each_row

DOCS = Path(__file__).parents[2] / "docs"


def scanned(folder: Path, /, **modules: str) -> list[Finding]:
    """The findings in a project of these modules; ``__`` in a name stands for a folder."""
    for name, text in modules.items():
        path = folder / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return scan([str(folder)]).findings


def ids(findings: list[Finding]) -> list[str]:
    return [one.rule.id for one in findings]


@each_row("rule", RULES, ids=lambda rule: rule.id)
def test_the_wrong_example_is_reported_and_the_right_one_is_not(rule: Rule, tmp_path: Path) -> None:
    assert ids(scanned(tmp_path / "a", wrong=rule.wrong)) == [rule.id]
    assert scanned(tmp_path / "b", right=rule.right) == []


def test_every_rule_has_a_page_that_exists() -> None:
    assert len({rule.id for rule in EVERY_RULE}) == len(EVERY_RULE)
    assert [rule.id for rule in EVERY_RULE if not (DOCS / rule.page).exists()] == []


_SQLMODEL = (
    "from fastapi import FastAPI\nfrom sqlmodel import Session, SQLModel\n\napp = FastAPI()\n\n"
    "class Hero(SQLModel, table=True): ...\n\n"
)
_SET = "from retrysafe.http.fastapi import Idempotency\napp.router.route_class = Idempotency(b).route_class\n"
FRAMEWORKS = {
    "a row that a model validates": (
        {
            "app": f"{_SQLMODEL}@app.post('/')\n"
            "def add(session: Session, hero: dict):\n    row = Hero.model_validate(hero)\n    session.add(row)\n"
        },
        ["RS101"],
    ),
    "a row that is the body": (
        {"app": f"{_SQLMODEL}@app.post('/')\ndef add(session: Session, hero: Hero):\n    session.add(hero)\n"},
        ["RS101"],
    ),
    "a row that a helper is given": (
        {
            "app": f"{_SQLMODEL}@app.post('/')\ndef touch(session: Session, id: int):\n"
            "    put(session, session.get(Hero, id))\n\n"
            "def put(session: Session, hero: Hero):\n    session.add(hero)\n"
        },
        [],
    ),
    "fastapi whose route class is set on the application": (
        {"app": f"{_SQLMODEL}{_SET}@app.post('/')\ndef add(session: Session, hero: Hero):\n    session.add(hero)\n"},
        [],
    ),
    "fastapi router of another module": (
        {
            "shop__routing": "import fastapi as web\nrouter = web.APIRouter()\n",
            "shop__views": "from shop.routing import router as r\nfrom shop import db\n\n@r.post('/')\n"
            "async def add(item): await db.save(item)\n",
            "shop__db": "async def save(item):\n    conn.execute('INSERT INTO t VALUES (1)')\n",
        },
        ["RS101"],
    ),
    "flask": (
        {
            "app": "from flask import Blueprint\nbp = Blueprint('x', __name__)\n\n"
            "@bp.route('/', methods=['GET', 'POST'])\ndef add():\n    c.execute('INSERT INTO t VALUES (1)')\n"
        },
        ["RS101"],
    ),
    "flask view of GET": (
        {
            "app": "from flask import Flask\napp = Flask('x')\n\n@app.route('/')\n"
            "def add():\n    c.execute('INSERT INTO t VALUES (1)')\n"
        },
        [],
    ),
    "django view by its route": (
        {
            "urls": "from django.urls import path\nimport views\nurlpatterns = [path('x', views.add)]\n",
            "views": "import models\n\ndef add(req):\n    if req.method == 'POST':\n"
            "        models.Order.objects.create()\n",
            "models": "from django.db import models\n\nclass Order(models.Model): ...\n",
        },
        ["RS101"],
    ),
    "django view without a route": (
        {
            "views": "import models\n\ndef add(req):\n    if req.method == 'POST':\n"
            "        models.Order.objects.create()\n",
            "models": "from django.db import models\n\nclass Order(models.Model): ...\n",
        },
        [],
    ),
    "rest framework": (
        {
            "views": "from rest_framework.views import APIView\nimport requests\n\nclass Base(APIView): ...\n\n"
            "class Pay(Base):\n    def post(self, request):\n        self.call()\n\n"
            "    def call(self):\n        requests.post('x')\n"
        },
        ["RS101"],
    ),
    "starlette": (
        {
            "app": "import httpx\nfrom starlette.routing import Route\n\nasync def pay(request):\n"
            "    async with httpx.AsyncClient() as c:\n        await c.post('x')\n\n"
            "routes = [Route('/', pay, methods=['POST'])]\n"
        },
        ["RS101"],
    ),
    "aiohttp": (
        {
            "app": "from aiohttp import web, ClientSession\n\nasync def pay(request):\n"
            "    async with ClientSession() as s:\n        await s.post('x')\n\n"
            "app = web.Application()\napp.router.add_post('/', pay)\n"
        },
        ["RS101"],
    ),
    "a router that is none": (
        {
            "app": "from mine import router\n\n@router.post('/')\ndef add():\n"
            "    c.execute('INSERT INTO t VALUES (1)')\n"
        },
        [],
    ),
    "a middleware of the application": (
        {
            "main": "from starlette.applications import Starlette\n"
            "from retrysafe.http.asgi import IdempotencyMiddleware\n"
            "app = Starlette()\napp.add_middleware(IdempotencyMiddleware, boundary=1)\n",
            "app": "from fastapi import FastAPI\napp = FastAPI()\n\n@app.post('/')\n"
            "def add():\n    c.execute('INSERT INTO t VALUES (1)')\n",
        },
        [],
    ),
    "a key that the handler reads": (
        {
            "app": "from fastapi import FastAPI, Request\napp = FastAPI()\n\n@app.post('/')\ndef add(r: Request):\n"
            "    if not seen(r.headers['Idempotency-Key']): c.execute('INSERT INTO t VALUES (1)')\n"
        },
        [],
    ),
    "an upsert": (
        {
            "app": "from fastapi import FastAPI\napp = FastAPI()\n\n@app.post('/')\n"
            "def add():\n    c.execute('INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING')\n"
        },
        [],
    ),
}


_ORDERS = "from retrysafe import Boundary\nshop = Boundary('shop', store='sqlite:///shop.db', effects='keyed')\n"
_ONCE = "@shop.once(key='order')"
_TOOLS = "from retrysafe.agents.pydantic_ai import ToolGuard"
REVERSED = {
    "fastapi": ("from fastapi import FastAPI\napp = FastAPI()", _ONCE, "@app.post('/orders')"),
    "fastapi, what is taken back": ("from fastapi import FastAPI\napp = FastAPI()", _ONCE, "@app.delete('/orders')"),
    "fastapi, with starlette's guard": (
        "from fastapi import APIRouter\nfrom retrysafe.http.starlette import idempotent\nrouter = APIRouter()",
        "@idempotent(shop)",
        "@router.post('/orders')",
    ),
    "flask, a blueprint": ("from flask import Blueprint\nbp = Blueprint('a', 'b')", _ONCE, "@bp.post('/orders')"),
    "flask, with its guard": (
        "from flask import Flask\nfrom retrysafe.http.flask import idempotent\napp = Flask('a')",
        "@idempotent",
        "@app.route('/orders', methods=['POST'])",
    ),
    "aiohttp, with its guard": (
        "from aiohttp import web\nfrom retrysafe.http import aiohttp as guards\nroutes = web.RouteTableDef()",
        "@guards.idempotent(shop)",
        "@routes.post('/orders')",
    ),
    "celery, shared": ("from celery import shared_task", _ONCE, "@shared_task"),
    "celery, of an application": (
        "from celery import Celery\napp = Celery('a')",
        _ONCE,
        "@app.task(bind=True, acks_late=True)",
    ),
    "celery, with its guard": (
        "from celery import shared_task\nfrom retrysafe.tasks.celery import once",
        "@once(shop, key='order')",
        "@shared_task(acks_late=True)",
    ),
    "taskiq": ("from taskiq_redis import ListQueueBroker\nbroker = ListQueueBroker('u')", _ONCE, "@broker.task"),
    "procrastinate": ("from procrastinate import App\napp = App(connector=None)", _ONCE, "@app.task(queue='a')"),
    "a guard with a name": ("from celery import shared_task\nonce = shop.once(key='order')", "@once", "@shared_task"),
    "a signal of django": (
        "from django.db.models.signals import post_save\nfrom django.dispatch import receiver",
        _ONCE,
        "@receiver(post_save)",
    ),
    "a tool of MCP": ("from mcp.server import MCPServer\nserver = MCPServer('air')", _ONCE, "@server.tool()"),
    "a tool of an agent": (
        f"from pydantic_ai import Agent\n{_TOOLS}\nagent, tools = Agent[None, str]('a'), ToolGuard(shop)",
        "@tools.once",
        "@agent.tool_plain",
    ),
}


@each_row(("imports", "guard", "registering"), REVERSED.values(), ids=REVERSED.keys())
def test_a_guard_above_the_decorator_that_registers(imports: str, guard: str, registering: str, tmp_path: Path) -> None:
    above = f"{_ORDERS}{imports}\n\n{guard}\n{registering}\ndef charge(order): ...\n"
    below = f"{_ORDERS}{imports}\n\n{registering}\n{guard}\ndef charge(order): ...\n"
    (found,) = scanned(tmp_path / "a", app=above)
    assert (found.rule.id, above.splitlines()[found.line - 1]) == ("RS102", guard)
    assert scanned(tmp_path / "b", app=below) == []


ON_THE_WAY = {
    "a route of django leads to the name": (
        "from django.views.decorators.http import require_POST",
        "@require_POST\ndef charge(request, order): ...",
    ),
    "so does one to a function of rest framework": (
        "from rest_framework.decorators import api_view",
        "@api_view(['POST'])\ndef charge(request, order): ...",
    ),
    "an action is looked up in its class": (
        "from rest_framework.decorators import action\nfrom rest_framework.viewsets import ViewSet",
        "@action(detail=True, methods=['post'])\ndef charge(self, request, order): ...",
    ),
    "the guard of huey's task is that of sending it": (
        "from huey import RedisHuey\nhuey = RedisHuey('a')",
        "@huey.task()\ndef charge(order): ...",
    ),
    "nobody knows the application": ("from elsewhere import app", "@app.task\ndef charge(order): ..."),
}


@each_row(("imports", "function"), ON_THE_WAY.values(), ids=ON_THE_WAY.keys())
def test_a_guard_above_another_decorator(imports: str, function: str, tmp_path: Path) -> None:
    assert scanned(tmp_path, app=f"{_ORDERS}{imports}\n\n{_ONCE}\n{function}\n") == []


@each_row(("modules", "expected"), FRAMEWORKS.values(), ids=FRAMEWORKS.keys())
def test_handlers(modules: dict[str, str], expected: list[str], tmp_path: Path) -> None:
    assert ids(scanned(tmp_path, **modules)) == expected


TRANSACTIONS = {
    "client as an attribute of an object": (
        (
            "import httpx\nfrom django.db import transaction as t\n\nclass Bank:\n    def __init__(self):\n"
            "        self.http = httpx.Client()\n\n    @t.atomic\n    def pay(self):\n        self.http.post('x')\n"
        ),
        ["RS201"],
    ),
    "through a function, in a session": (
        (
            "import stripe\nfrom sqlalchemy.orm import sessionmaker\n\nMaker = sessionmaker()\n\n"
            "def charge():\n    stripe.Charge.create()\n\ndef pay():\n    with Maker.begin() as s:\n        charge()\n"
        ),
        ["RS201"],
    ),
    "a context manager of the project": (
        (
            "import smtplib\nfrom contextlib import contextmanager\nfrom django.db import transaction\n\n"
            "@contextmanager\ndef traced():\n    with transaction.atomic():\n        yield\n\n"
            "def pay():\n    with traced(), smtplib.SMTP() as s:\n        s.send_message(1)\n"
        ),
        ["RS201"],
    ),
    "after the transaction": (
        (
            "import requests\nfrom django.db import transaction\n\ndef pay():\n    with transaction.atomic():\n"
            "        x()\n"
            "    requests.post('x')\n"
        ),
        ["RS203"],
    ),
    "after the transaction, by another branch": (
        (
            "import requests\nfrom django.db import transaction\n\ndef pay(now):\n    if now:\n"
            "        with transaction.atomic():\n            x()\n        return\n    requests.post('x')\n"
        ),
        [],
    ),
    "after the transaction, if it succeeded": (
        (
            "import requests\nfrom django.db import transaction\n\ndef pay():\n    try:\n"
            "        with transaction.atomic():\n            x()\n    except ValueError:\n        return\n"
            "    else:\n        requests.post('x')\n"
        ),
        ["RS203"],
    ),
    "before the commit": (
        (
            "import requests, sqlite3\n\ndef pay():\n    c = sqlite3.connect('x')\n    requests.post('x')\n"
            "    c.commit()\n"
        ),
        [],
    ),
    "another function called post": (
        (
            "from django.db import transaction\nfrom mine import requests\n\n"
            "def pay():\n    with transaction.atomic():\n"
            "        requests.post('x')\n"
        ),
        [],
    ),
    "a function that is only defined": (
        (
            "import requests\nfrom django.db import transaction\n\ndef pay():\n    with transaction.atomic():\n"
            "        def later():\n            requests.post('x')\n        transaction.on_commit(later)\n"
        ),
        [],
    ),
    "a task that waits for the commit by itself": (
        (
            "from celery import Celery\nfrom django.db import transaction\n\napp = Celery()\n\nclass Later(app.Task):\n"
            "    def apply_async(self, *a):\n        transaction.on_commit(lambda: super().apply_async(*a))\n\n"
            "@app.task(base=Later)\ndef ship(): ...\n\n@transaction.atomic\ndef pay():\n    ship.apply_async()\n"
        ),
        [],
    ),
    "a producer": (
        (
            "from confluent_kafka import Producer\n\nproducer = Producer({})\n\nasync def pay(pool):\n"
            "    import asyncpg\n    conn = await asyncpg.connect()\n    async with conn.transaction():\n"
            "        producer.produce('t', b'')\n"
        ),
        ["RS202"],
    ),
}


@each_row(("text", "expected"), TRANSACTIONS.values(), ids=TRANSACTIONS.keys())
def test_transactions(text: str, expected: list[str], tmp_path: Path) -> None:
    assert ids(scanned(tmp_path, app=text)) == expected


MODEL = "from django.db import models\nfrom django.db.models import F as field\n\nclass M(models.Model): ...\n\n"
INCREMENTS = {
    "in memory": (f"{MODEL}def f(m: M):\n    m.n += 1\n    m.save()\n", ["RS301"]),
    "of a row that was read": (
        f"{MODEL}def f():\n    m = M.objects.get()\n    m.n = m.n + 1\n    m.save()\n",
        ["RS301"],
    ),
    "of a new row": (f"{MODEL}def f():\n    m = M()\n    m.n += 1\n    m.save()\n", []),
    "of an object that is no row": ("def f(m):\n    m.n += 1\n    m.save()\n", []),
    "of a text": (f"{MODEL}def f(m: M):\n    m.n += 'x' + str(1)\n    m.save()\n", []),
    "in the database": (f"{MODEL}def f():\n    M.objects.update(n=field('n') + 1)\n", ["RS301"]),
    "compare-and-set": (f"{MODEL}def f():\n    M.objects.filter(paid=False).update(paid=True, n=field('n') + 1)\n", []),
    "in SQL": ("def f(c):\n    c.execute('UPDATE t SET n = t.n + 1 WHERE id = 1')\n", ["RS301"]),
    "in SQL, of a version that is compared": (
        "def f(c):\n    c.execute('UPDATE t SET v = v + 1, n = 2 WHERE v = 7')\n",
        [],
    ),
    "in SQLAlchemy": ("from sqlalchemy import update\n\ndef f(M):\n    update(M).values(n=M.n + 1)\n", ["RS301"]),
    "in a claim": (
        (
            f"{MODEL}from retrysafe import Boundary\nb = Boundary('b')\n\ndef f():\n    with b.claim('k'):\n"
            "        M.objects.update(n=field('n') + 1)\n"
        ),
        [],
    ),
}


@each_row(("text", "expected"), INCREMENTS.values(), ids=INCREMENTS.keys())
def test_increments(text: str, expected: list[str], tmp_path: Path) -> None:
    assert ids(scanned(tmp_path, app=text)) == expected


OUT = "    requests.post('x')\n"
CONSUMERS = {
    "celery, acknowledged early": (
        f"import requests\nfrom celery import shared_task\n\n@shared_task\ndef f():\n{OUT}",
        [],
    ),
    "celery, with self.retry": (
        (
            f"import requests\nfrom celery import shared_task\n\n@shared_task(bind=True)\ndef f(self):\n"
            f"{OUT}    self.retry()\n"
        ),
        ["RS401"],
    ),
    "pika": (
        (
            f"import pika, requests\n\nchannel = pika.BlockingConnection().channel()\n\ndef f(c, m, p, body):\n{OUT}\n"
            "channel.basic_consume('q', on_message_callback=f)\n"
        ),
        ["RS401"],
    ),
    "kafka": (
        (
            "import requests\nfrom kafka import KafkaConsumer\n\nfor message in KafkaConsumer('t'):\n"
            "    requests.post('x')\n"
        ),
        ["RS401"],
    ),
    "confluent": (
        (
            "import requests\nfrom confluent_kafka import Consumer\n\nc = Consumer({})\nwhile True:\n    m = c.poll()\n"
            "    requests.post('x')\n"
        ),
        ["RS401"],
    ),
    "faststream": (
        (
            "import requests\nfrom faststream.rabbit import RabbitBroker\n\nb = RabbitBroker()\n\n@b.subscriber('q')\n"
            f"async def f(m):\n{OUT}"
        ),
        ["RS401"],
    ),
    "a key for the other side": (
        (
            "import requests\nfrom faststream.rabbit import RabbitBroker\n\nb = RabbitBroker()\n\n@b.subscriber('q')\n"
            "async def f(m):\n    requests.post('x', headers={'Idempotency-Key': m.id})\n"
        ),
        [],
    ),
    "a row that is looked up first": (
        (
            f"{MODEL}import dramatiq\n\n@dramatiq.actor\ndef f(key):\n    if not M.objects.filter(key=key).exists():\n"
            "        M.objects.create(key=key)\n"
        ),
        [],
    ),
    "a row that is looked up first, two calls below": (
        (
            f"{MODEL}import dramatiq\n\n@dramatiq.actor\ndef f(key): once(key)\n\n"
            "def once(key):\n    if M.objects.filter(key=key).exists(): return\n    add(key)\n\n"
            "def add(key): M.objects.create(key=key)\n"
        ),
        [],
    ),
    "a call out behind a look-up, two calls below": (
        (
            f"{MODEL}import dramatiq, requests\n\n@dramatiq.actor\ndef f(key): once(key)\n\n"
            "def once(key):\n    if M.objects.filter(banned=key).exists(): return\n    pay(key)\n\n"
            f"def pay(key):\n    M.objects.create(key=key)\n{OUT}"
        ),
        ["RS401"],
    ),
    "a unique constraint whose error is handled": (
        (
            f"{MODEL}import dramatiq\nfrom django.db import IntegrityError\n\n@dramatiq.actor\ndef f(key):\n    try:\n"
            "        M.objects.create(key=key)\n    except IntegrityError:\n        pass\n"
        ),
        [],
    ),
}


@each_row(("text", "expected"), CONSUMERS.values(), ids=CONSUMERS.keys())
def test_consumers(text: str, expected: list[str], tmp_path: Path) -> None:
    assert ids(scanned(tmp_path, app=text)) == expected


KEYS = {
    "time in a header": ("import time\n\ndef f():\n    return {'Idempotency-Key': f'k-{time.time()}'}\n", ["RS501"]),
    "through a variable": (
        "from uuid import uuid4 as new\n\ndef f(pay):\n    key = str(new())\n    pay(idempotency_key=key)\n",
        ["RS501"],
    ),
    "one key for all attempts of a loop": (
        (
            "import uuid\n\ndef f(pay):\n    key = uuid.uuid4()\n    for _ in range(3):\n"
            "        pay(idempotency_key=key)\n"
        ),
        [],
    ),
    "a key for each attempt of a loop": (
        (
            "import uuid\n\ndef f(pay):\n    for _ in range(3):\n        key = uuid.uuid4()\n"
            "        pay(idempotency_key=key)\n"
        ),
        ["RS501"],
    ),
    "a key that is given": ("def f(pay, key):\n    pay(idempotency_key=str(key))\n", []),
    "a claim": (
        "import secrets\nfrom retrysafe import Boundary\nb = Boundary('b')\nb.claim(secrets.token_hex())\n",
        ["RS501"],
    ),
}


@each_row(("text", "expected"), KEYS.values(), ids=KEYS.keys())
def test_keys(text: str, expected: list[str], tmp_path: Path) -> None:
    assert ids(scanned(tmp_path, app=text)) == expected


MARKS = {
    "early return": (
        (
            "import redis, requests\nr = redis.from_url('x')\n\ndef f():\n    if not r.setnx('k', 1):\n        return\n"
            "    requests.post('x')\n"
        ),
        ["RS601"],
    ),
    "Django's cache": (
        (
            "import requests\nfrom django.core.cache import cache\n\ndef f():\n    if cache.add('k', 1):\n"
            "        requests.post('x')\n"
        ),
        ["RS601"],
    ),
    "a lock that is released": (
        (
            "import requests\nfrom django.core.cache import cache\n\n"
            "def f():\n    if cache.add('k', 1):\n        try:\n"
            "            requests.post('x')\n        finally:\n            cache.delete('k')\n"
        ),
        ["RS603"],
    ),
    "a lock that its owner releases": (
        (
            "import redis, requests\nr = redis.Redis()\n\ndef f(me):\n    if r.set('k', me, nx=True):\n"
            "        requests.post('x')\n        if r.get('k') == me:\n            r.delete('k')\n"
        ),
        [],
    ),
    "a cache of what was read": (
        (
            "import requests\nfrom django.core.cache import cache\n\ndef f():\n    found = cache.get('k')\n"
            "    if found is None:\n        found = requests.get('x')\n        cache.set('k', found)\n"
        ),
        [],
    ),
    "a decorator that caches": (
        (
            "from django.core.cache import cache\n\ndef cached(function):\n    def inner(k):\n"
            "        if cache.get(k) is None:\n            cache.set(k, function(k))\n    return inner\n"
        ),
        [],
    ),
    "a set of one call": (
        (
            "import requests\n\ndef f(ids):\n    seen = set()\n    for i in ids:\n        if i not in seen:\n"
            "            seen.add(i)\n            requests.post('x')\n"
        ),
        [],
    ),
    "a list that nothing is added to": (
        "import requests\nKNOWN = []\n\ndef f(i):\n    if i not in KNOWN:\n        requests.post('x')\n",
        [],
    ),
    "a set called add": ("import requests\n\ndef f(seen):\n    if seen.add('k'):\n        requests.post('x')\n", []),
}


@each_row(("text", "expected"), MARKS.values(), ids=MARKS.keys())
def test_marks(text: str, expected: list[str], tmp_path: Path) -> None:
    assert ids(scanned(tmp_path, app=text)) == expected


ADDS = "M.objects.update(n=field('n') + 1)"
STATES = {
    "left before": (f"if m.state == 'paid': return\n    {ADDS}\n    m.state = 'paid'\n    m.save()", []),
    "entered": (f"if m.state != 'paid':\n        {ADDS}\n        m.state = 'paid'\n        m.save()", []),
    "the opposite branch": (
        f"if m.state == 'paid': pass\n    else:\n        {ADDS}\n    m.state = 'paid'\n    m.save()",
        [],
    ),
    "one of several": (f"if m.state in ('new', 'old'):\n        {ADDS}\n    m.state = 'paid'\n    m.save()", []),
    "one part of a condition": (f"if pk and not m.paid:\n        {ADDS}\n    m.paid = True\n    m.save()", []),
    "an instant": (f"if m.paid_at is None:\n        {ADDS}\n    m.paid_at = now()\n    m.save()", []),
    "members of an enumeration": (
        f"if m.state is S.NEW:\n        {ADDS}\n    m.state = S.PAID\n    m.save()\n\nclass S: NEW, PAID = 1, 2",
        [],
    ),
    "never left": (f"if m.state != 'paid':\n        {ADDS}\n    m.save()", ["RS301"]),
    "not saved": (f"if m.state != 'paid':\n        {ADDS}\n        m.state = 'paid'", ["RS301"]),
    "left for a state that is meant too": (
        f"if m.state in ('new', 'old'):\n        {ADDS}\n    m.state = 'old'\n    m.save()",
        ["RS301"],
    ),
    "entered again": (
        f"if m.state != 'paid':\n        m.state = 'paid'\n        {ADDS}\n        m.state = 'new'\n        m.save()",
        ["RS301"],
    ),
    "left in some cases": (
        f"if m.state != 'paid':\n        {ADDS}\n        if pk > 7:\n            m.state = 'paid'\n    m.save()",
        ["RS301"],
    ),
    "of another attribute": (f"if m.state != 'paid':\n        {ADDS}\n    m.other = 'paid'\n    m.save()", ["RS301"]),
    "for a value that is not known": (
        f"if m.paid_at is None:\n        {ADDS}\n    m.paid_at = pk\n    m.save()",
        ["RS301"],
    ),
    "one of two ways in": (f"if pk or not m.paid:\n        {ADDS}\n    m.paid = True\n    m.save()", ["RS301"]),
}


@each_row(("text", "expected"), STATES.values(), ids=STATES.keys())
def test_a_state_of_a_row_that_is_left(text: str, expected: list[str], tmp_path: Path) -> None:
    """A second run finds the row in the new state."""
    app = f"{MODEL}from django.utils.timezone import now\n\ndef f(pk):\n    m = M.objects.get(pk=pk)\n    {text}\n"
    assert ids(scanned(tmp_path, app=app)) == expected


def test_the_state_of_what_is_no_row_decides_nothing(tmp_path: Path) -> None:
    text = f"def f(m):\n    if m.state != 'paid':\n        {ADDS}\n        m.state = 'paid'\n        m.save()\n"
    assert ids(scanned(tmp_path, app=MODEL + text)) == ["RS301"]


def test_a_state_does_not_excuse_a_call_out(tmp_path: Path) -> None:
    """A process that dies between the call and the new state calls again."""
    state = "    if m.state == 'paid': return\n    requests.post('x')\n    m.state = 'paid'\n    m.save()\n"
    text = f"import requests, dramatiq\n\n@dramatiq.actor\ndef f(pk):\n    m = M.objects.get(pk=pk)\n{state}"
    assert ids(scanned(tmp_path, app=MODEL + text)) == ["RS401"]


def test_a_session_saves_what_it_has_read(tmp_path: Path) -> None:
    text = (
        "import dramatiq\nfrom sqlalchemy.orm import Session\n\nclass T: ...\n\n"
        "@dramatiq.actor\ndef f(pk, s: Session):\n    m = s.get(T, pk)\n"
        "    if m.state == 'paid':\n        return\n    s.add(T())\n{}    s.commit()\n"
    )
    assert ids(scanned(tmp_path / "a", app=text.format("    m.state = 'paid'\n"))) == []
    assert ids(scanned(tmp_path / "b", app=text.format(""))) == ["RS401"]


POPS = {
    "a mark that is taken": ("r.session.pop('token')", []),
    "a mark that may be missing": ("r.session.pop('token', None)", ["RS101"]),
    "a mark that is missing without harm": (
        "try:\n            r.session.pop('token')\n        except KeyError:\n            pass",
        ["RS101"],
    ),
    "taken out of something else": ("r.POST.pop('token')", ["RS101"]),
}


@each_row(("taken", "expected"), POPS.values(), ids=POPS.keys())
def test_a_mark_in_a_session(taken: str, expected: list[str], tmp_path: Path) -> None:
    views = (
        "from django.http import HttpRequest\nimport models\n\ndef add(r: HttpRequest):\n    if r.method == 'POST':\n"
    )
    found = scanned(
        tmp_path,
        urls="from django.urls import path\nimport views\nurlpatterns = [path('x', views.add)]\n",
        views=f"{views}        {taken}\n        models.Order.objects.create()\n",
        models="from django.db import models\n\nclass Order(models.Model): ...\n",
    )
    assert ids(found) == expected


_ONCE = "import requests\nfrom retrysafe import Boundary, current\nb = Boundary('b', store='memory://')\n\n"
_POST = "    requests.post('https://x.example/')\n"
_COMMIT = "    with sqlite3.connect('x.db') as db:\n        db.execute('UPDATE t SET n = 1')\n"
PARTS: dict[str, tuple[str, list[str]]] = {
    "one call": (f"@b.once(key='k')\ndef f(k):\n{_POST}", []),
    "the first with a key": (
        "@b.once(key='k')\ndef f(k):\n"
        "    requests.post('https://x.example/', headers={'Idempotency-Key': current().key_for('x')})\n" + _POST,
        [],
    ),
    "in a step": (f"@b.once(key='k')\ndef f(k):\n    with current().step('x'):\n    {_POST}{_POST}", []),
    "no guard": (f"def f(k):\n{_POST}{_POST}", []),
    "in a helper": (f"def g():\n{_POST}\n@b.once(key='k')\ndef f(k):\n    g()\n    g()\n", ["RS701"]),
    "in a handler of an inbox": (
        f"from retrysafe.messaging import Inbox\n@Inbox(b).handler('c')\ndef f(m):\n{_POST}{_POST}",
        ["RS701"],
    ),
    "in a route": (
        (
            "from fastapi import APIRouter\nfrom retrysafe.http.fastapi import Idempotency\n"
            "r = APIRouter(route_class=Idempotency(b, principal='shared').route_class)\n"
            f"@r.post('/x')\ndef f(k):\n{_POST}{_POST}"
        ),
        ["RS701"],
    ),
    "in a route with a decorator": (
        (
            "from starlette.requests import Request\nfrom retrysafe.http.starlette import idempotent\n"
            f"@idempotent(b, principal='shared')\nasync def f(r: Request):\n{_POST}{_POST}"
        ),
        ["RS701"],
    ),
    "in a route that reads": (
        (
            "from fastapi import APIRouter\nfrom retrysafe.http.fastapi import Idempotency\nr = APIRouter("
            f"route_class=Idempotency(b, principal='shared').route_class)\n@r.get('/x')\ndef f(k):\n{_POST}{_POST}"
        ),
        [],
    ),
    "before the commit": (f"import sqlite3\n@b.once(key='k')\ndef f(k):\n{_POST}{_COMMIT}", []),
    "after the commit": (f"import sqlite3\n@b.once(key='k')\ndef f(k):\n{_COMMIT}{_POST}", ["RS702"]),
}


@each_row(("text", "expected"), PARTS.values(), ids=PARTS)
def test_parts_of_a_guarded_function_that_a_retry_repeats(text: str, expected: list[str], tmp_path: Path) -> None:
    assert ids(scanned(tmp_path, app=_ONCE + text)) == expected


def test_a_guarded_lambda_function_is_not_reported(tmp_path: Path) -> None:
    guarded = (
        "import boto3\nfrom retrysafe import Boundary\nfrom retrysafe.tasks import aws_lambda\n"
        "ses = boto3.client('ses')\nb = Boundary('b')\n\n@aws_lambda.once(b, key='detail.id')\n"
        "def handler(event, context):\n    ses.send_email(Source='shop')\n"
    )
    assert scanned(tmp_path, app=guarded) == []
