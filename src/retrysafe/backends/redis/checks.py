"""The checks of Redis and Valkey."""

from __future__ import annotations

from retrysafe.backends.checks import Examination, no_facts
from retrysafe.backends.redis.requests import Script
from retrysafe.protocol.checks import Check, Severity, told
from retrysafe.protocol.requests import Ask

_GUIDE = "how-to/run-on-redis-or-valkey.md"
_TIME = "local t = redis.call('TIME') return t[1] * 1000000 + t[2]"

CHECKS = (
    Check(
        "redis-eviction",
        "Does a full server refuse claims, and forget none?",
        Severity.ERROR,
        "CONFIG SET maxmemory-policy noeviction, and the same line in redis.conf",
        _GUIDE,
        told("eviction"),
    ),
    Check(
        "redis-persistence",
        "Does the server keep what it has acknowledged?",
        Severity.WARNING,
        "CONFIG SET appendonly yes, CONFIG SET appendfsync everysec (or always), and the same lines in redis.conf",
        _GUIDE,
        told("persistence"),
    ),
    Check(
        "redis-role",
        "Is the server a master?",
        Severity.ERROR,
        "Point store= at the master, or use redis+sentinel://",
        _GUIDE,
        told("role"),
    ),
    Check(
        "redis-replication",
        "Do the replicas keep up?",
        Severity.WARNING,
        "Bring the replicas back, or  CONFIG SET min-replicas-to-write 1",
        _GUIDE,
        told("replication"),
    ),
)
EXAMINATION = Examination(
    CHECKS, no_facts, None, lambda store: Ask(Script("time", _TIME, (b"retrysafe:time",), ()), int)
)
