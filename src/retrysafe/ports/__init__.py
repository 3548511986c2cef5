"""The seams: what a store is asked, how it is asked, and what else can be replaced.

A Store is pure: it renders each request and parses its answer. An Executor performs one request.
A request is written in the language that its store and its executors share.
"""

from __future__ import annotations

from retrysafe.ports.asking import Ask, Steps
from retrysafe.ports.brokers import AsyncPublisher, Consumer, Publisher, Routed
from retrysafe.ports.clients import (
    AfterCommit,
    AsyncClient,
    AsyncExecutor,
    AsyncFlushing,
    AsyncListener,
    Client,
    Executor,
    Flushing,
    Hearing,
    Listener,
    OpenTransaction,
)
from retrysafe.ports.languages import Answer, Call, Copy, Query, Rows, Scan, Scanned, Script, Settings, Step
from retrysafe.ports.messages import InboxStore, OperableOutbox, OutboxStore
from retrysafe.ports.observing import Event, Observer, Watch
from retrysafe.ports.results import Codec
from retrysafe.ports.stores import (
    BatchStore,
    Cache,
    Capabilities,
    OperableStore,
    RotatingStore,
    Store,
    TransactionalStore,
)

__all__ = [
    "AfterCommit",
    "Answer",
    "Ask",
    "AsyncClient",
    "AsyncExecutor",
    "AsyncFlushing",
    "AsyncListener",
    "AsyncPublisher",
    "BatchStore",
    "Cache",
    "Call",
    "Capabilities",
    "Client",
    "Codec",
    "Consumer",
    "Copy",
    "Event",
    "Executor",
    "Flushing",
    "Hearing",
    "InboxStore",
    "Listener",
    "Observer",
    "OpenTransaction",
    "OperableOutbox",
    "OperableStore",
    "OutboxStore",
    "Publisher",
    "Query",
    "RotatingStore",
    "Routed",
    "Rows",
    "Scan",
    "Scanned",
    "Script",
    "Settings",
    "Step",
    "Steps",
    "Store",
    "TransactionalStore",
    "Watch",
]
