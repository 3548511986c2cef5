"""The symbols of libraries that the scanned code may use, grouped by their effect."""

from __future__ import annotations

import re

from retrysafe.scan.symbols import Symbols

KNOWN = tuple(
    f"{name}."
    for name in (
        *("aio_pika", "aiohttp", "aiokafka", "aiosmtplib", "arq", "asyncpg", "boto3", "braintree", "celery"),
        *("confluent_kafka", "django", "django_rq", "dramatiq", "fastapi", "faststream", "flask", "flask_mail"),
        *("flask_restful", "flask_restx", "flask_sqlalchemy", "google", "httpx", "huey", "kafka", "kombu", "litestar"),
        *("mollie", "nats", "ninja", "paypalrestsdk", "peewee", "pika", "psycopg", "psycopg2", "pymongo", "razorpay"),
        *("redis", "requests", "rest_framework", "retrysafe", "rq", "sendgrid", "slack_sdk", "sqlalchemy", "sqlmodel"),
        *("starlette", "stripe", "tortoise", "twilio", "urllib3"),
    )
)
"""Libraries that the rules know; no module of the project is taken for one of them."""

_SESSION = "sqlalchemy.orm.Session()"
_CANONICAL = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^sqlalchemy\.(?:orm|ext\.asyncio)\.(?:session\.)?(?:async_)?sessionmaker\(\)(?:\(\)|\.begin\(\))", _SESSION),
        (r"^sqlalchemy\.(?:orm|ext\.asyncio)\.(?:session\.|scoping\.)?(?:Async)?Session\(\)", _SESSION),
        (r"^sqlalchemy\.(?:orm\.(?:scoping\.)?|ext\.asyncio\.)(?:async_)?scoped_session\(\)(?:\(\))?", _SESSION),
        (r"^sqlmodel\.(?:ext\.asyncio\.session\.|orm\.session\.)?(?:Async)?Session\(\)", _SESSION),
        (r"^flask_sqlalchemy\.(?:extension\.)?SQLAlchemy\(\)\.session(?:\(\))?", _SESSION),
        (
            r"^sqlalchemy\.(?:ext\.asyncio\.)?(?:engine\.)?(?:create_(?:async_)?engine|(?:Async)?Engine)\(\)",
            "sqlalchemy.Engine()",
        ),
        (r"^sqlalchemy\.Engine\(\)\.(?:connect|begin)\(\)", "sqlalchemy.Connection()"),
        (r"^sqlalchemy\.(?:engine\.|ext\.asyncio\.)?(?:Async)?Connection\(\)", "sqlalchemy.Connection()"),
        (r"^sqlalchemy\.(?:sql\.)?(?:expression\.)?(insert|update|text)\(\)", r"sqlalchemy.\1()"),
        (r"^sqlalchemy\.dialects\.\w+\.insert\(\)", "sqlalchemy.insert()"),
        (r"^django\.db\.models\.(?:expressions\.)?F\b", "django.db.models.F"),
        (r"^django\.db\.models\.(?:base\.)?Model\b", "django.db.models.Model"),
        (r"^fastapi\.(?:routing|applications)\.", "fastapi."),
        (r"^redis\.(?:asyncio\.)?(?:client\.)?(?:Strict)?Redis(?:\.from_url)?\(\)", "redis.Redis()"),
        (r"^redis\.(?:asyncio\.)?from_url\(\)", "redis.Redis()"),
        (r"^django_redis\.get_redis_connection\(\)", "redis.Redis()"),
        (r"^django\.core\.cache\.caches\[\]", "django.core.cache.cache"),
    )
]


def simplify(symbol: str) -> str:
    """One symbol for what libraries have under several names."""
    for pattern, replacement in _CANONICAL:
        symbol = pattern.sub(replacement, symbol)
    return symbol if len(symbol) < 400 else ""


WRAPPING_TYPES = Symbols("{typing,typing_extensions}.{Annotated,Optional,Union,Final,ClassVar}")
GENERATORS = Symbols("{typing,collections.abc}.{Async,}{Generator,Iterator,Iterable}", "**.AbstractAsyncContextManager")
INJECTING = Symbols("fastapi.{Depends,Security}", "fastapi.param_functions.Depends", "faststream.Depends")
PROPERTIES = Symbols(
    "builtins.property", "functools.cached_property", "django.utils.functional.cached_property", "**.hybrid_property"
)
CONTEXT_MANAGERS = Symbols("contextlib.{contextmanager,asynccontextmanager}")

# ---------------------------------------------------------------- transactions

TRANSACTIONS = Symbols(
    "django.db.transaction.atomic",
    "sqlalchemy.orm.Session().{begin,begin_nested}",
    "sqlalchemy.Engine().begin",
    "sqlalchemy.Connection().{begin,begin_nested}",
    "sqlalchemy.{orm,ext.asyncio}.{sessionmaker,async_sessionmaker}().begin",
    "{psycopg,asyncpg,psycopg_pool}.**.transaction",
    "asyncpg.**.transaction",
    "tortoise.transactions.in_transaction",
    "peewee.*().{atomic,transaction}",
    "retrysafe.Boundary().transaction",
)
"""Symbols that open a transaction when their result is entered."""
TRANSACTION_CONNECTIONS = Symbols("{sqlite3,psycopg,psycopg2,psycopg.Connection,psycopg.AsyncConnection}.connect()")
"""Connections that begin and commit a transaction when they are entered."""
COMMITS = Symbols(
    "sqlalchemy.{orm.Session,Connection}().commit",
    "{sqlite3,psycopg,psycopg2,psycopg.Connection,psycopg.AsyncConnection}.connect().commit",
    "django.db.transaction.commit",
)
TRANSACTION_DECORATORS = Symbols("django.db.transaction.atomic", "tortoise.transactions.atomic", "peewee.*().atomic")
METHOD_DECORATOR = Symbols("django.utils.decorators.method_decorator")

# ---------------------------------------------------------------- effects

_VERBS = "{post,put,patch,delete,request,send,stream}"
CALLS_OUT = Symbols(
    "requests.{post,put,patch,delete,request}",
    "requests.{Session,session,sessions.Session}().{post,put,patch,delete,request,send}",
    "httpx.{post,put,patch,delete,request,stream}",
    f"httpx.{{Client,AsyncClient}}().{_VERBS}",
    "aiohttp.ClientSession().{post,put,patch,delete,request}",
    "urllib.request.urlopen",
    "urllib3.{PoolManager().,}{request,urlopen}",
    "stripe.**.{create,create_async,modify,modify_async,capture,capture_async,confirm,confirm_async,cancel,refund,pay,pay_async,delete,update,update_async,send_invoice,finalize_invoice,void_invoice}",
    "braintree.**.{sale,create,refund,submit_for_settlement,void,update}",
    "paypalrestsdk.**.{create,execute,capture,refund}",
    "razorpay.Client().**.{create,capture,refund}",
    "mollie.**.create",
    "twilio.rest.Client().**.create",
    "sendgrid.SendGridAPIClient().send",
    "slack_sdk.**.{chat_postMessage,chat_update,files_upload,files_upload_v2}",
    "smtplib.{SMTP,SMTP_SSL}().{sendmail,send_message}",
    "aiosmtplib.send",
    "aiosmtplib.SMTP().{sendmail,send_message}",
    "django.core.mail.{send_mail,send_mass_mail,mail_admins,mail_managers}",
    "django.core.mail.{message.,}{EmailMessage,EmailMultiAlternatives}().send",
    "flask_mail.Mail().send",
    "boto3.{client,resource}()**.{send_email,send_raw_email,put_object,upload_file,upload_fileobj,invoke,put_item,start_execution}",
)
"""Effects outside of the database that a rollback does not take back."""
READS_OUT = Symbols(
    "requests.{get,head}",
    "requests.{Session,session,sessions.Session}().{get,head}",
    "httpx.{get,head}",
    "httpx.{Client,AsyncClient}().{get,head}",
    "aiohttp.ClientSession().{get,head}",
    "stripe.**.{retrieve,retrieve_async,list,list_async}",
)
SENDS = Symbols(
    "celery.Task().{delay,apply_async}",
    "celery.Task().{s,si,signature,subtask}().{delay,apply_async}",
    "celery.{chain,group,chord,signature,Signature,canvas.*}(){,()}.{delay,apply_async}",
    "celery.Celery().send_task",
    "celery.current_app.send_task",
    "dramatiq.Actor().{send,send_with_options}",
    "rq.Queue().{enqueue,enqueue_call,enqueue_in,enqueue_at}",
    "django_rq.{enqueue,get_queue().enqueue,get_queue().enqueue_call}",
    "huey.Task().schedule",
    "arq.**.enqueue_job",
    "{kafka.KafkaProducer,aiokafka.AIOKafkaProducer}().{send,send_and_wait}",
    "confluent_kafka.{Producer,SerializingProducer}().produce",
    "pika.**.basic_publish",
    "aio_pika.**.publish",
    "kombu.**.publish",
    "nats.**.publish",
    "faststream.**Broker().publish",
    "redis.Redis().{publish,xadd,rpush,lpush}",
    "boto3.{client,resource}()**.{send_message,send_message_batch,send_messages,publish,put_events,put_record,put_records}",
    "google.cloud.pubsub_v1.PublisherClient().publish",
    "azure.servicebus.**.{send_messages,schedule_messages}",
    "channels.layers.get_channel_layer().{group_send,send}",
)
TASK_DECORATORS = (
    (
        Symbols("celery.{shared_task,Celery().task,app.shared_task,decorators.task,task,current_app.task}"),
        "celery.Task()",
    ),
    (Symbols("dramatiq.actor", "dramatiq.**.actor"), "dramatiq.Actor()"),
    (Symbols("huey.**.{task,db_task}"), "huey.Task()"),
)
"""Decorators that make a message's sender of a function."""

# ---------------------------------------------------------------- rows

DJANGO_MODEL = Symbols(
    "django.db.models.Model", "django.contrib.auth.models.{AbstractUser,AbstractBaseUser,User}", "mptt.models.MPTTModel"
)
_MANAGERS = "{Model.objects,Model._default_manager,Model().**,Manager()**,Manager.**,QuerySet**,manager.**,query.**}"
DJANGO_CREATES = Symbols(
    f"django.db.models.{_MANAGERS}.{{create,acreate,bulk_create,abulk_create}}",
    "django.contrib.auth.get_user_model().objects.{create,create_user,create_superuser}",
    "django.contrib.auth.models.**.{create,create_user}",
)
DJANGO_UPDATES = Symbols("django.db.models.**.{update,aupdate}")
DJANGO_FILTERS = frozenset({"filter", "get", "exclude"})
DJANGO_F = Symbols("django.db.models.F")
DJANGO_READS = Symbols(
    "django.db.models.**.{get,aget,first,afirst,last,earliest,latest,select_for_update}()",
    "django.db.models.**[]",
    "django.shortcuts.{get_object_or_404,aget_object_or_404}()",
)
GET_OR_CREATE = Symbols("**.{get_or_create,aget_or_create,update_or_create,aupdate_or_create}")
SESSION_ADDS = Symbols("sqlalchemy.orm.Session().{add,add_all,bulk_save_objects}")
SESSION_READS = Symbols(
    "sqlalchemy.orm.Session().{get,get_one,scalar,scalars}()**",
    "sqlalchemy.orm.Session().{query,execute,exec}()**.{first,one,one_or_none,get,scalar_one,scalar_one_or_none,scalar}()",
    "flask_sqlalchemy.SQLAlchemy().{Model,**}.query**.{first,get,get_or_404,first_or_404,one,one_or_none}()",
)
SQL_INSERT, SQL_UPDATE, SQL_TEXT = (
    Symbols("sqlalchemy.insert()**"),
    Symbols("sqlalchemy.update()**"),
    Symbols("sqlalchemy.text"),
)
EXECUTES = frozenset({"execute", "executemany", "fetchrow", "fetchval", "fetch", "text", "exec_driver_sql"})
"""Methods and functions that take SQL as their first argument."""
DRF_SERIALIZER = Symbols("rest_framework.serializers.**Serializer")
DRF_GETS_SERIALIZER = Symbols("rest_framework.**.get_serializer")
MODEL_FORM = Symbols("django.forms.{models.,}{ModelForm,BaseModelForm}", "django.contrib.auth.forms.UserCreationForm")
MONGO_INSERTS = Symbols("{pymongo,motor}.**.{insert_one,insert_many}")

# ---------------------------------------------------------------- guards

GUARDS = Symbols(
    "retrysafe.**",
    "{aws_lambda_powertools.utilities.idempotency,asgi_idempotency_header,idempotency_header}**",
    "{fastapi_idempotency_key,idemkit,drf_idempotency_key,idempotency_key,django_idempotency_key}**",
)
LOOK_UPS = Symbols(
    "django.db.models.**.{exists,aexists,first,afirst,count}()", "sqlalchemy.orm.Session().**.{exists,count}()"
)
NO_ROW = Symbols(
    "django.db.models.**.DoesNotExist",
    "**:*.DoesNotExist",
    "django.core.exceptions.ObjectDoesNotExist",
    "sqlalchemy.**.NoResultFound",
)
NOT_UNIQUE = Symbols(
    "django.db.{utils.,}IntegrityError",
    "sqlalchemy.exc.IntegrityError",
    "{psycopg,psycopg2,asyncpg}.**.UniqueViolation{,Error}",
    "sqlite3.IntegrityError",
)
KEY_HEADERS = frozenset({"idempotency-key", "http_idempotency_key", "x-idempotency-key"})

# ---------------------------------------------------------------- chance

RANDOM = Symbols(
    "uuid.{uuid1,uuid4,uuid6,uuid7}()**",
    "secrets.{token_hex,token_urlsafe,token_bytes,randbits,randbelow,choice}()**",
    "random.{random,randint,choice,choices,getrandbits,randrange,uniform}()**",
    "random.{SystemRandom,Random}().**",
    "os.urandom()**",
    "time.{time,time_ns,monotonic,monotonic_ns,perf_counter}()",
    "datetime.datetime.{now,utcnow,today}()**",
    "django.utils.timezone.now()**",
    "django.utils.crypto.get_random_string()",
)
"""Values that differ from one attempt to the next."""
CLAIMS = Symbols("retrysafe.Boundary().{claim,key_for}")
ONCE = Symbols("retrysafe.Boundary().once")
IN_STEPS = Symbols(
    "retrysafe.Boundary().once", "retrysafe.messaging.Inbox().handler", "retrysafe.http.*.{idempotent,idempotent()}"
)
"""Decorators of functions whose parts can be steps."""

# ---------------------------------------------------------------- marks

CACHES = Symbols("django.core.cache.cache", "redis.Redis(){,.pipeline()}")
CONTAINERS = Symbols("builtins.{dict,list,set}", "collections.{defaultdict,deque,OrderedDict}", "cachetools.**")
INSTANTS = Symbols("datetime.datetime.{now,utcnow,today}()**", "django.utils.timezone.now()**", "time.time()")
"""Values that are times, and so neither None nor false."""
SESSION_POPS = Symbols(
    "django.http.{request.,}HttpRequest().session.pop",
    "starlette.requests.Request().session.pop",
    "fastapi.{requests.,}Request().session.pop",
    "flask.session.pop",
)
"""Taking something out of a session, which raises if it is not there and no default is given."""
