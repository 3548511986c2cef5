"""Steps in a hash beside the record, in its slot: every script judges the record, too.

While the work is under way the hash has no expiry; once it is settled, it ends with its record.
"""

from __future__ import annotations

import struct
from typing import Any

from retrysafe.backends.redis import packing
from retrysafe.backends.redis.packing import result_part
from retrysafe.backends.redis.requests import Script
from retrysafe.backends.redis.store import RedisStore, name_of
from retrysafe.protocol.records import StoredResult
from retrysafe.protocol.requests import Ask
from retrysafe.protocol.steps import DECISION, At, FoundRow, StepRow, StepState, Work

_STATES = tuple(StepState)
_HEAD = struct.Struct(">BqiBI")
_LUA = (
    packing.LUA
    + """
local function holds(attempt, token)
  local record = load()
  return attempt == '' or (record and record.attempt == attempt and record.token == tonumber(token)
    and record.state <= 2)
end
local function row() return redis.call('HGET', KEYS[2], ARGV[1]) end
"""
)
_SCRIPTS = {
    name: _LUA + body
    for name, body in {
        "step_rows": "redis.call('PERSIST', KEYS[2]) return redis.call('HGETALL', KEYS[2])",
        "step_insert": """
if not holds(ARGV[3], ARGV[4]) then return 0 end
redis.call('PERSIST', KEYS[2])
return redis.call('HSETNX', KEYS[2], ARGV[1], ARGV[2])""",
        "step_change": """
local old = row()
if not old then return 0 end
local state, token = struct.unpack('>Bi8', old)
if state ~= tonumber(ARGV[5]) or token > tonumber(ARGV[4]) then return 0 end
if ARGV[6] == '1' and not holds(ARGV[3], ARGV[4]) then return 0 end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
return 1""",
        "step_drop": """
local old = row()
if not old then return 0 end
local state, token = struct.unpack('>Bi8', old)
if state ~= 0 or token ~= tonumber(ARGV[4]) then return 0 end
return redis.call('HDEL', KEYS[2], ARGV[1])""",
        "step_find": "return {row(), holds(ARGV[3], ARGV[4]) and 1 or 0}",
        "step_signal": """
local record = load()
if not record or record.created ~= tonumber(ARGV[5]) then return 0 end
local state = STATES[record.state]
if state == 'completed' or state == 'failed' then return 0 end
return redis.call('HSETNX', KEYS[2], ARGV[1], ARGV[2])""",
        "step_conclude": """
local record = load()
if record and record.state > 2 then redis.call('PEXPIREAT', KEYS[2], expire_at(record.forget)) end
return 1""",
    }.items()
}


class RedisSteps:
    """Rows as fields of a hash for each key: the generation, the name and the index."""

    def rows(self, work: Work) -> list[Ask[list[StepRow]]]:
        """Return the rows of a work."""

        def parse(answer: Any) -> list[StepRow]:
            pairs = answer.items() if isinstance(answer, dict) else zip(answer[::2], answer[1::2], strict=True)
            found = [(bytes(field).decode().split("\0"), packed) for field, packed in pairs]
            return [_row(At(*at), packed) for (generation, *at), packed in found if int(generation) == work.generation]

        return [Ask(_script("rows", work), parse)]

    def insert(self, work: Work, row: StepRow, *, joined: bool) -> Ask[bool]:
        """Write a first row if the work is its claim's."""
        return Ask(_script("insert", work, row.at, _packed(work, row)), bool)

    def change(self, work: Work, row: StepRow, before: StepState) -> Ask[bool]:
        """Write the next state of a row."""
        more = (_STATES.index(before), int(row.state is StepState.UNDONE))
        return Ask(_script("change", work, row.at, _packed(work, row), *more), bool)

    def drop(self, work: Work, at: At) -> Ask[bool]:
        """Remove a row that this attempt has started."""
        return Ask(_script("drop", work, at), bool)

    def find(self, work: Work, at: At) -> Ask[FoundRow]:
        """Return a row, and whether the work is its claim's."""
        return Ask(
            _script("find", work, at),
            lambda answer: FoundRow(None if not answer[0] else _row(at, answer[0]), held=bool(answer[1])),
        )

    def signal(self, work: Work, row: StepRow) -> Ask[bool]:
        """Write the row of a signal if the work has not ended."""
        return Ask(_script("signal", work, row.at, _packed(work, row), work.generation), bool)

    def conclude(self, work: Work) -> list[Ask[None]]:
        """Let the hash expire with its record."""
        return [Ask(_script("conclude", work), lambda answer: None)]

    def sweep(self, limit: int) -> list[Ask[int]]:
        """Nothing: they expire."""
        return []


def step_store(store: RedisStore) -> RedisSteps:
    """The steps of a store."""
    return RedisSteps()


def _script(name: str, work: Work, at: At = DECISION, packed: bytes = b"", *more: int) -> Script:
    record = name_of(work.key)
    beside = record.replace(b"retrysafe:{", b"retrysafe:steps:{", 1)
    field = "\0".join((str(work.generation), *at)).encode()
    attempt = "" if work.held is None else work.held.attempt
    return Script(
        f"step_{name}", _SCRIPTS[f"step_{name}"], (record, beside), (field, packed, attempt, work.token, *more)
    )


def _packed(work: Work, row: StepRow) -> bytes:
    state, size = _STATES.index(row.state), len(row.fingerprint)
    return _HEAD.pack(state, work.token, row.place, row.undoable, size) + row.fingerprint + result_part(row.result)


def _row(at: At, packed: bytes) -> StepRow:
    state, token, place, undoable, size = _HEAD.unpack_from(packed)
    result: StoredResult | None = packing.result_at(packed, _HEAD.size + size)
    return StepRow(at, _STATES[state], place, bool(undoable), packed[_HEAD.size : _HEAD.size + size], result, token)
