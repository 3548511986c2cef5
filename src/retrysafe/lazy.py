"""Libraries that only some programs need or have, each imported when one of its names is first used.

A boundary on memory, or one that is only declared, starts twice as fast without them: ``lazy.asyncio.sleep``.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio as asyncio
    import dataclasses as dataclasses
    import decimal as decimal
    import inspect as inspect
    import logging as logging
    import pwd as pwd
    import random as random
    import resource as resource
    import shlex as shlex
    import sqlite3 as sqlite3
    import uuid as uuid
    import zoneinfo as zoneinfo
    from concurrent import futures as futures
    from urllib import parse as parse

    import anyio as anyio
    import asyncpg as asyncpg
    import boto3 as boto3
    import psycopg as psycopg
    import pymysql as pymysql
else:
    from importlib import import_module

    _ELSEWHERE = {"futures": "concurrent.futures", "parse": "urllib.parse"}

    def __getattr__(name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        found = globals()[name] = import_module(_ELSEWHERE.get(name, name))
        return found
