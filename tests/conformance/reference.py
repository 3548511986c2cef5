"""A server that keeps the whole HTTP contract, in memory, on bare asyncio; and told to, breaks it in one way.

It exists to prove the runner, so it shares no code with it or with the package, and is as plain as can be. ``wrong``
names the one thing that it does wrong; the code asks ``self.wrong("...")`` where that thing is done.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import re
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any
from urllib.parse import unquote

Lines = list[tuple[str, str]]
Body = Callable[[], Awaitable[bytes]]
Gone = Callable[[], Awaitable[bytes]]
LEASE, WINDOW, MEMORY, REQUEST, RESPONSE = 0.2, 3600, 65_536, 200_000, 50_000
FEATURES = ["gate", "stream", "raise", "hop", "background", "principals", "elapse", "store", "cors", "compression"]
HOP = {"connection", "keep-alive", "proxy-connection", "te", "transfer-encoding", "upgrade", "trailer"}
NEVER_STORED = {401, 403, 408, 421, 425, 429}
ORIGIN = "https://conformance.example"
_KEY = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"(\s*;.*)?')


@dataclass
class Asked:
    """A request, its body read or not yet."""

    method: str
    target: str
    lines: Lines
    body: bytes = b""

    def all(self, name: str) -> list[str]:
        return [value for found, value in self.lines if found.lower() == name]

    def get(self, name: str, default: str = "") -> str:
        return next(iter(self.all(name)), default)


@dataclass
class Answer:
    """A response; with ``pieces`` it is streamed, chunked."""

    status: int
    lines: Lines = field(default_factory=list)
    body: bytes = b""
    pieces: AsyncIterator[bytes] | None = None

    def get(self, name: str) -> str:
        return next((value for found, value in self.lines if found.lower() == name), "")


@dataclass
class Record:
    """The server's state of one key."""

    fingerprint: dict[str, Any]
    since: float
    answer: Answer | None = None
    omitted: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event)
    aged: float = 0.0


class Reference:
    """The server, in a thread of its own, as a context manager: ``with Reference() as url``."""

    def __init__(self, wrong: str = "", *, mode: str = "leased", **choices: Any) -> None:
        self._wrong, self._mode, self._choices = wrong, mode, choices
        self._asked_of: set[str] = set()
        self._up = True
        self._records: dict[Any, Record] = {}
        self._executions: Counter[str] = Counter()
        self._effects: Counter[str] = Counter()
        self._background: Counter[str] = Counter()
        self._gates: dict[str, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def wrong(self, name: str) -> bool:
        """Tell whether this is what the server does wrong."""
        self._asked_of.add(name)
        return self._wrong == name

    # ---------------------------------------------------------------- the thread

    def __enter__(self) -> str:
        started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda loop, context: None)

        async def start() -> None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            started.set()

        def main() -> None:
            self._loop.create_task(start())
            self._loop.run_forever()

        self._thread = threading.Thread(target=main)
        self._thread.start()
        assert started.wait(60)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/base"

    def __exit__(self, *_: object) -> None:
        async def stop() -> None:
            self._server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            self._loop.stop()

        asyncio.run_coroutine_threadsafe(stop(), self._loop)
        self._thread.join()
        self._loop.close()

    # ---------------------------------------------------------------- the wire

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                method, target, _ = line.decode("latin-1").split()
                lines: Lines = []
                while text := (await reader.readline()).decode("latin-1").rstrip("\r\n"):
                    name, _, value = text.partition(":")
                    lines.append((name, value.strip()))
                asked = Asked(method, target.removeprefix("/base"), lines)
                length = int(asked.get("content-length", "0"))

                async def body(length: int = length) -> bytes:
                    return await reader.readexactly(length)

                if not await self._answer(asked, body, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(
        self, asked: Asked, body: Body, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer one request; whether the connection goes on."""
        answer, after = await self._route(asked, body, lambda: reader.read(1))
        if answer is None:
            return False
        answer = self._dressed(asked, answer)
        lines = list(answer.lines)
        if not answer.get("date"):
            lines.append(("Date", formatdate(usegmt=True)))
        bodyless = asked.method == "HEAD" or answer.status in (204, 304)
        if answer.pieces is not None:
            lines.append(("Transfer-Encoding", "chunked"))
        elif not bodyless or answer.status == 200:
            lines.append(("Content-Length", str(len(answer.body))))
        head = "".join(f"{name}: {value}\r\n" for name, value in lines)
        writer.write(f"HTTP/1.1 {answer.status} X\r\n{head}\r\n".encode("latin-1"))
        if answer.pieces is not None:
            try:
                async for piece in answer.pieces:
                    writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            except RuntimeError:
                return False
            writer.write(b"0\r\n\r\n")
        elif not bodyless:
            writer.write(answer.body)
        after()
        return not writer.is_closing()

    def _dressed(self, asked: Asked, answer: Answer) -> Answer:
        """Add the parts outside the layer: compression and CORS."""
        lines, body = list(answer.lines), answer.body
        if asked.get("origin") and not self.wrong("no CORS on what the layer says"):
            lines.append(("Access-Control-Allow-Origin", ORIGIN))
            if not self.wrong("nothing exposed"):
                lines.append(("Access-Control-Expose-Headers", "Idempotent-Replayed, Retry-After"))
        packs = "gzip" in asked.get("accept-encoding") and len(body) >= 1000 and answer.pieces is None
        if packs and not answer.get("content-encoding"):
            lines, body = [*lines, ("Content-Encoding", "gzip")], gzip.compress(body)
        return Answer(answer.status, lines, body, answer.pieces)

    async def _route(self, asked: Asked, body: Body, gone: Gone) -> tuple[Answer | None, Callable[[], None]]:
        path = asked.target.partition("?")[0]
        if path.startswith("/fixture"):
            return self._control(asked), lambda: None
        if path == "/openapi.json":
            return self._published(), lambda: None
        if asked.method == "OPTIONS":
            return self._preflight(), lambda: None
        if not path.startswith("/act"):
            return Answer(404), lambda: None
        return await self._layer(asked, body, gone)

    # ---------------------------------------------------------------- the fixture's controls

    def _control(self, asked: Asked) -> Answer:
        path, _, query = asked.target.removeprefix("/fixture").partition("?")
        value = query.partition("=")[2]
        if path == "/release":
            self._gate(value).set()
        elif path == "/reset":
            self._records.clear()
        elif path == "/elapse":
            for record in self._records.values():
                record.aged += float(value)
        elif path == "/store":
            self._up = value == "1"
        told: Any = self._capabilities()
        if path == "/calls":
            told = {"executions": self._executions[value], "background": self._background[value]}
            told |= {"effects": self._effects[value]} if self._mode == "transactional" else {}
        return Answer(200, [("Content-Type", "application/json")], json.dumps(told).encode())

    def _capabilities(self) -> dict[str, Any]:
        return {
            "fixture": 1,
            "name": "reference",
            "version": "1",
            "server": "asyncio",
            "mode": self._mode,
            "features": FEATURES,
            "limits": {
                "lease": LEASE,
                "window": WINDOW,
                "request_memory": MEMORY,
                "request": REQUEST,
                "response": RESPONSE,
            },
            "choices": self._choices,
            "openapi": "/openapi.json",
        }

    def _gate(self, id: str) -> asyncio.Event:
        return self._gates.setdefault(id, asyncio.Event())

    def _published(self) -> Answer:
        header = {"name": "Idempotency-Key", "in": "header"}
        parameters = [] if self.wrong("header not published") else [header]
        operation = {"parameters": parameters, "responses": {"400": {}, "409": {}, "422": {}}}
        return Answer(200, [], json.dumps({"paths": {"/act": {"post": operation}}}).encode())

    def _preflight(self) -> Answer:
        allowed = "content-type" if self.wrong("preflight forbids the key") else "content-type, idempotency-key"
        return Answer(204, [("Access-Control-Allow-Headers", allowed)])

    # ---------------------------------------------------------------- the layer

    async def _layer(self, asked: Asked, body: Body, gone: Gone) -> tuple[Answer | None, Callable[[], None]]:
        def nothing() -> None:
            pass

        methods = [*self._choices.get("methods", ["POST", "PATCH"])]
        if self.wrong("guards nothing"):
            methods = []
        if self.wrong("guards GET"):
            methods.append("GET")
        if self.wrong("leaves PATCH alone"):
            methods.remove("PATCH")
        if self.wrong("reads the body first"):
            asked.body = await body()
        key = self._key(asked) if asked.method in methods else None
        if isinstance(key, Answer):
            return key, nothing
        who = asked.get("authorization").removeprefix("Bearer ")
        if not self.wrong("scopes by token"):
            who = who.partition(".")[0]
        if self.wrong("one bucket for all"):
            who = ""
        elif not who and key is not None and not self.wrong("anonymous bucket"):
            return self._refusal(403, "principal-missing"), nothing
        asked.body = asked.body or await body()
        if key is not None and len(asked.body) > REQUEST and not self.wrong("no hard limit"):
            return self._refusal(413, "too-large"), nothing
        if key is None or (len(asked.body) > MEMORY and self.wrong("large requests bypass")):
            return await self._unguarded(asked), nothing
        if self._choices.get("operation") == "endpoint":
            key += asked.method + asked.target.partition("?")[0]
        return await self._guarded(asked, (who, key), gone)

    async def _unguarded(self, asked: Asked) -> Answer | None:
        try:
            answer = await self._handler(asked)
            self._effects[self._script(asked).get("id", "")] += 1
            self._later(asked, None)
            return answer
        except RuntimeError:
            return Answer(500)

    def _key(self, asked: Asked) -> str | Answer | None:
        """The key, None if there is none, or a refusal."""
        lines = asked.all("idempotency-key")
        invalid = self._refusal(400, "key-invalid")
        if not lines:
            required = self._choices.get("required") and not self.wrong("runs without a required key")
            return self._refusal(400, "key-missing") if required or self.wrong("requires a key") else None
        if len(lines) > 1 and not self.wrong("last line wins"):
            return invalid
        line = lines[-1]
        if line == "" and self.wrong("an empty key is none"):
            return None
        if not line.isascii() and self.wrong("any characters"):
            return line
        if line.startswith('"'):
            match = _KEY.fullmatch(line)
            if match is None:
                return None if self.wrong("malformed strings run unprotected") and line.isascii() else invalid
            key = match[1] + (match[2] or "" if self.wrong("parameters are part of the key") else "")
            key = f'"{key}"' if self.wrong("quotes are part of the key") else key
        else:
            strict = self._choices.get("key_syntax") == "strict" and not self.wrong("takes bare keys")
            if strict or self.wrong("refuses bare keys") or ("," in line and not self.wrong("takes commas")):
                return invalid
            key = line
        longest = 1000 if self.wrong("long keys") else 254 if self.wrong("254 characters at most") else 255
        if not 0 < len(key) <= longest or not key.isascii():
            return invalid
        policy = self._choices.get("key_policy", "any")
        guessable = len(key) < 20 and policy != "any" and not self.wrong("no key policy")
        return invalid if guessable else key

    def _fingerprint(self, asked: Asked) -> dict[str, Any]:
        path, _, query = asked.target.partition("?")
        if self.wrong("decodes paths"):
            path = unquote(path)
        if self.wrong("strips slashes"):
            path = path.rstrip("/")
        if self.wrong("sorts queries"):
            query = "&".join(sorted(query.split("&")))
        body: Any = asked.body
        if match := re.fullmatch("multipart/form-data; boundary=(.*)", asked.get("content-type")):
            if not self.wrong("multipart by bytes"):
                body = body.replace(match[1].encode(), b"")
        elif asked.get("content-type") == "application/json" and self.wrong("compares JSON by value"):
            body = json.loads(body)
        parts: dict[str, Any] = {"method": asked.method, "path": path, "query": query, "body": body}
        for name in ("content-type", "content-encoding", "if-match", "if-none-match"):
            parts[name] = asked.get(name)
        if parts["content-type"].startswith("multipart/"):
            parts["content-type"] = "multipart"
            if self.wrong("multipart by bytes"):
                parts["content-type"] = asked.get("content-type")
        if self.wrong("fingerprints trace fields"):
            parts["trace"] = asked.get("traceparent")
        for part in ("method", "query", "body", "content-type", "content-encoding", "if-match", "if-none-match"):
            if self.wrong(f"fingerprint without {part}"):
                parts.pop(part)
        return parts

    async def _guarded(self, asked: Asked, key: Any, gone: Gone) -> tuple[Answer | None, Callable[[], None]]:
        def nothing() -> None:
            pass

        if not self._up:
            if self.wrong("open without its store"):
                return await self._unguarded(asked), nothing
            return self._refusal(503, "store-unavailable", [("Retry-After", "1")]), nothing
        if self._script(asked).get("status") == 412 and self.wrong("preconditions first"):
            return Answer(412), nothing
        fingerprint = self._fingerprint(asked)
        record = self._records.get(key)
        if record is not None and record.aged >= WINDOW and not self.wrong("never expires"):
            if self._choices.get("on_expired") == "refuse":
                return self._refusal(409, "key-expired"), nothing
            record = None
        if record is not None:
            settled = self._found(asked, fingerprint, record)
            if settled is not None:
                return await settled, nothing
        self._records[key] = record = Record(fingerprint, time.monotonic())
        work = self._loop.create_task(self._run(asked, key, record))
        self._tasks.add(work)
        if self.wrong("work ends with its connection"):
            watch = self._loop.create_task(self._watch(gone, work, key))
            self._tasks.add(watch)
        answer = await work
        record.done.set()
        if self.wrong("records late") and not record.omitted:
            late, record.answer = record.answer, None
            if late is not None:
                self._loop.call_later(0.05, lambda: setattr(record, "answer", late))
        return answer, nothing

    async def _watch(self, gone: Gone, work: asyncio.Task[Any], key: Any) -> None:
        with suppress(ConnectionError):
            await gone()
        if not work.done():
            work.cancel()
            del self._records[key]

    def _found(self, asked: Asked, fingerprint: dict[str, Any], record: Record) -> Any:
        """Answer a request with a known key; None to run it."""
        running = record.answer is None and not record.omitted
        if fingerprint != record.fingerprint and not (running and self._hides(record)):
            if self.wrong("a mismatch overwrites"):
                record.fingerprint = fingerprint
            status = 409 if self.wrong("409 for a mismatch") else self._choices.get("mismatch_status", 422)
            return self._soon(self._refusal(status, "key-reused"))
        if running:
            taken = time.monotonic() - record.since > LEASE and self.wrong("does not renew")
            if self.wrong("runs them all") or taken:
                return None
            return self._busy(asked, record)
        return self._soon(self._replay(asked, record))

    def _hides(self, record: Record) -> bool:
        return self._mode == "transactional" or self.wrong("no mismatch while it runs")

    async def _soon(self, answer: Answer) -> Answer:
        return answer

    async def _busy(self, asked: Asked, record: Record) -> Answer:
        if self._choices.get("concurrency") == "wait":
            await record.done.wait()
            found: Answer = await self._found(asked, self._fingerprint(asked), record)
            return found
        wait = [] if self.wrong("no Retry-After") else [("Retry-After", "1")]
        status = self._choices.get("concurrent_status", 409)
        refusal = self._refusal(425 if self.wrong("425 for a duplicate") else status, "in-progress", wait)
        if self.wrong("stores its conflicts"):
            record.aged = -1.0
        return refusal

    def _replay(self, asked: Asked, record: Record) -> Answer:
        answer = record.answer
        assert answer is not None
        lines = [] if self.wrong("no marker") else [("Idempotent-Replayed", "true")]
        if not self.wrong("cacheable replays"):
            lines.append(("Cache-Control", "no-store"))
            answer = Answer(
                answer.status, [one for one in answer.lines if one[0].lower() != "cache-control"], answer.body
            )
        if self.wrong("background work on replay"):
            self._later(asked, None)
        if record.aged < 0:
            return self._refusal(409, "in-progress")
        if record.omitted:
            return Answer(answer.status, [*lines, ("Idempotency-Replay", "omitted")])
        if (
            asked.get("if-none-match")
            and asked.get("if-none-match") == answer.get("etag")
            and self.wrong("304 on replay")
        ):
            return Answer(304)
        status = 200 if answer.status == 204 and self.wrong("204 becomes 200") else answer.status
        if self._script(asked).get("status") == 410 and self.wrong("looks at the resource"):
            status = 410
        if self.wrong("stored as compressed") and len(answer.body) >= 1000:
            return Answer(status, [*lines, ("Content-Encoding", "gzip")], gzip.compress(answer.body))
        body = answer.body.strip() if self.wrong("trims bodies") else answer.body
        if answer.get("content-type") == "application/json":
            body = body.replace(b" ", b"") if self.wrong("serialises again") else body
        elif self.wrong("binary as text"):
            body = body.decode("utf-8", "replace").encode()
        return Answer(status, [*answer.lines, *lines], body)

    def _kept(self, answer: Answer) -> Lines:
        """The lines of a response that are stored."""
        named = {one.strip().lower() for one in answer.get("connection").split(",")}
        kept: Lines = []
        for name, value in answer.lines:
            lower = name.lower()
            hop = lower in HOP | {"date"} or lower in named
            cookie = lower in ("set-cookie", "www-authenticate") and self._choices.get("cookies") != "replay"
            if (hop and not self.wrong("stores hop-by-hop")) or (cookie and not self.wrong("stores cookies")):
                continue
            if lower == "vary" and self.wrong("drops fields"):
                continue
            if lower == "etag" and self.wrong("drops ETag"):
                continue
            kept.append((name, value))
        if self.wrong("merges lines"):
            kept = list({name.lower(): (name, value) for name, value in kept}.values())
        return kept

    async def _run(self, asked: Asked, key: Any, record: Record) -> Answer | None:
        script = self._script(asked)
        large = len(script.get("text", "")) * script.get("repeat", 1) > RESPONSE
        events = any(value == "text/event-stream" for _, value in script.get("headers", []))
        try:
            answer = await self._handler(asked)
            if (large or events) and not self.wrong("large responses are stored"):
                return self._large(answer, key, record)
            if answer.pieces is not None:
                if self.wrong("streams bypass"):
                    del self._records[key]
                    return answer
                answer.body, answer.pieces = b"".join([piece async for piece in answer.pieces]), None
                if self.wrong("truncates streams"):
                    answer.body = answer.body[:400]
        except RuntimeError:
            if self.wrong("partial responses are replayed") and script.get("raise") == "between":
                record.answer = Answer(200, [], b"half")
                return None
            return self._failed(asked, key, record, Answer(500, [], b"failed"))
        if answer.status >= 500:
            return self._failed(asked, key, record, answer)
        stored = Answer(answer.status, self._kept(answer), answer.body)
        return self._settled(asked, key, record, answer, stored)

    def _settled(self, asked: Asked, key: Any, record: Record, answer: Answer, stored: Answer) -> Answer:
        id = self._script(asked).get("id", "")
        if not self._up:
            return Answer(500) if self.wrong("fails when it cannot record") else answer
        self._effects[id] += 1
        unstored = set() if self.wrong("stores every 4xx") else NEVER_STORED
        if self.wrong("stores no 4xx"):
            unstored = set(range(400, 500))
        if answer.status in unstored:
            self._records.pop(key, None)
        else:
            record.answer = stored
        self._later(asked, key)
        if self.wrong("marker on the first"):
            return Answer(answer.status, [*answer.lines, ("Idempotent-Replayed", "true")], answer.body)
        return answer

    def _failed(self, asked: Asked, key: Any, record: Record, answer: Answer) -> Answer:
        policy = "store" if self.wrong("stores 5xx") else self._choices.get("on_5xx", "release")
        if self.wrong("effects outlive a 5xx"):
            self._effects[self._script(asked).get("id", "")] += 1
        if policy == "release" and not self.wrong("locked for ever after a failure"):
            del self._records[key]
        elif policy == "store":
            record.answer = answer
        if self.wrong("5xx marked as replay"):
            answer.lines.append(("Idempotent-Replayed", "true"))
        return answer

    def _large(self, answer: Answer, key: Any, record: Record) -> Answer:
        if self._mode == "transactional" or self._choices.get("on_large") == "error":
            del self._records[key]
            return self._refusal(501, "response-unsupported")
        record.answer, record.omitted = Answer(answer.status), True
        if self.wrong("large responses bypass"):
            del self._records[key]
        if self.wrong("events held back") and answer.pieces is not None:
            answer.pieces = self._held(answer.pieces)
        return answer

    async def _held(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        whole = [piece async for piece in pieces]
        for piece in whole:
            yield piece

    def _refusal(self, status: int, code: str, lines: Lines | None = None) -> Answer:
        if self.wrong("plain refusals"):
            return Answer(status, [*(lines or []), ("Content-Type", "text/plain")], code.encode())
        problem = {"type": f"https://example.org/{code}", "title": code, "status": status, "detail": code, "code": code}
        if not self.wrong("problems without safe_new_key"):
            problem["safe_new_key"] = True
        link = ("Link", f'<https://example.org/{code}>; rel="describedby"')
        media = ("Content-Type", "application/problem+json")
        return Answer(status, [*(lines or []), media, link], json.dumps(problem).encode())

    # ---------------------------------------------------------------- the handler

    def _script(self, asked: Asked) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(asked.get("fixture-script", "{}"))
        return found

    async def _handler(self, asked: Asked) -> Answer:
        script = self._script(asked)
        id, repeat = script.get("id", ""), script.get("repeat", 1)
        self._executions[id] += 1
        if script.get("gate") == "before":
            await self._gate(id).wait()
        if script.get("raise") == "before":
            raise RuntimeError
        lines = [(name, value) for name, value in script.get("headers", [])]
        body = base64.b64decode(script["base64"]) if "base64" in script else script.get("text", "").encode()
        if "base64" not in script and "text" not in script:
            body, lines = asked.body, [*lines, ("Content-Type", asked.get("content-type"))]
        answer = Answer(script.get("status", 200), lines, body * repeat)
        if script.get("stream"):
            answer.pieces = self._pieces(script, [body] * repeat)
        return answer

    async def _pieces(self, script: dict[str, Any], pieces: list[bytes]) -> AsyncIterator[bytes]:
        for number, piece in enumerate(pieces):
            if number == 1 and script.get("gate") == "between":
                await self._gate(script["id"]).wait()
            if number == 1 and script.get("raise") == "between":
                raise RuntimeError
            yield piece

    def _later(self, asked: Asked, key: Any) -> None:
        """The handler's work after the response."""
        script = self._script(asked)
        if "background" in script:
            self._background[script["id"]] += 1
            if script["background"] == "raise" and self.wrong("forgets when background work raises"):
                self._records.pop(key, None)
