"""Steps in a hash beside the record, in its slot: every script judges the record, too.

While the work is under way the hash has no expiry; once it is settled, it ends with its record.
"""

from __future__ import annotations

import struct
from typing import Any

from retrysafe.backends.redis import packing
from retrysafe.backends.redis.packing import result_part
from retrysafe.backends.redis.requests import Scan, Scanned, Script
from retrysafe.backends.redis.store import RedisStore, key_of, name_of, record_of
from retrysafe.protocol.records import Filter, Micros, StoredResult
from retrysafe.protocol.requests import Ask, nothing
from retrysafe.protocol.steps import DECISION, At, FoundRow, RunEntry, RunPage, StepRow, StepState, Work

_STATES = tuple(StepState)
_HEAD = struct.Struct(">BqiBI")
_BESIDE = b"retrysafe:steps:{"
_PAGE = 100
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
        "step_history": "return redis.call('HGETALL', KEYS[2])",  # no PERSIST: ended runs expire
        "step_glance": f"""
KEYS[2], KEYS[1] = KEYS[1], 'retrysafe:' .. string.sub(KEYS[1], {len(_BESIDE)})
local record = load()
if not record then return false end
local rows = redis.call('HGETALL', KEYS[2])
for i = 2, #rows, 2 do rows[i] = string.sub(rows[i], 1, {_HEAD.size}) end
return {{reply(string.sub(record.packed, 1, HEAD_SIZE + record.claim_size)), rows}}""",
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
        return [Ask(_script("rows", work), lambda answer: [_row(*one) for one in _fields(answer, work.generation)])]

    def insert(self, work: Work, row: StepRow, *, joined: bool) -> Ask[bool]:
        return Ask(_script("insert", work, row.at, _pack(work, row)), bool)

    def change(self, work: Work, row: StepRow, before: StepState) -> Ask[bool]:
        more = (_STATES.index(before), int(row.state is StepState.UNDONE))
        return Ask(_script("change", work, row.at, _pack(work, row), *more), bool)

    def drop(self, work: Work, at: At) -> Ask[bool]:
        return Ask(_script("drop", work, at), bool)

    def find(self, work: Work, at: At) -> Ask[FoundRow]:
        return Ask(
            _script("find", work, at),
            lambda answer: FoundRow(None if not answer[0] else _row(at, answer[0]), held=bool(answer[1])),
        )

    def signal(self, work: Work, row: StepRow) -> Ask[bool]:
        return Ask(_script("signal", work, row.at, _pack(work, row), work.generation), bool)

    def conclude(self, work: Work) -> list[Ask[None]]:
        return [Ask(_script("conclude", work), nothing)]

    def sweep(self, limit: int) -> list[Ask[int]]:
        """Nothing: they expire."""
        return []

    # ------------------------------------------------------------ for operators

    newest_first = False

    def history(self, work: Work) -> Ask[list[tuple[StepRow, Micros]]]:
        return Ask(
            _script("history", work), lambda answer: [(_row(*one), 0) for one in _fields(answer, work.generation)]
        )

    def runs(self, wanted: Filter, cursor: str | None) -> Ask[RunPage]:
        def parse(answer: Scanned) -> RunPage:
            found = []
            for name, reply in filter(all, answer.found):
                record = record_of(key_of(name.replace(_BESIDE, b"retrysafe:{", 1)), reply[0])
                rows = [_head(*one) for one in _fields(reply[1], record.created)] if record else []
                if record and rows and wanted.takes(record):
                    found.append(RunEntry(record, max(rows, key=lambda row: (row.at == DECISION, row.place))))
            return RunPage(found, answer.cursor)

        glance = Script("step_glance", _SCRIPTS["step_glance"], (b"",), ())
        return Ask(Scan(_BESIDE + b"*", cursor, _PAGE, glance), parse)


def step_store(store: RedisStore) -> RedisSteps:
    return RedisSteps()


def _script(name: str, work: Work, at: At = DECISION, packed: bytes = b"", *more: int) -> Script:
    record = name_of(work.key)
    beside = record.replace(b"retrysafe:{", _BESIDE, 1)
    field = "\0".join((str(work.generation), *at)).encode()
    attempt = "" if work.ownership is None else work.ownership.attempt
    return Script(
        f"step_{name}", _SCRIPTS[f"step_{name}"], (record, beside), (field, packed, attempt, work.token, *more)
    )


def _pack(work: Work, row: StepRow) -> bytes:
    state, size = _STATES.index(row.state), len(row.fingerprint)
    return _HEAD.pack(state, work.token, row.place, row.undoable, size) + row.fingerprint + result_part(row.result)


def _fields(answer: Any, generation: Micros) -> list[tuple[At, bytes]]:
    """The places and packed rows of a generation."""
    pairs = answer.items() if isinstance(answer, dict) else zip(answer[::2], answer[1::2], strict=True)
    found = [(bytes(field).decode().split("\0"), packed) for field, packed in pairs]
    return [(At(*at), packed) for (number, *at), packed in found if int(number) == generation]


def _head(at: At, packed: bytes) -> StepRow:
    state, token, place, undoable, _ = _HEAD.unpack_from(packed)
    return StepRow(at, _STATES[state], place, bool(undoable), token=token)


def _row(at: At, packed: bytes) -> StepRow:
    size = _HEAD.unpack_from(packed)[-1]
    result: StoredResult | None = packing.result_at(packed, _HEAD.size + size)
    return _head(at, packed)._replace(fingerprint=packed[_HEAD.size : _HEAD.size + size], result=result)
