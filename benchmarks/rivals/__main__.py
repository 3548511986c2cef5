"""``python -m benchmarks.rivals [NAME…]``: run the conformance runner on each layer, and write what came of it.

Needs the extra ``rivals``; express needs ``npm install`` in its folder before, Fiber needs Go. A layer that isn't
installed keeps the results that it has. They go to ``results.json``; ``scripts/generate-docs`` makes the page of them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from retrysafe import conformance
from retrysafe.conformance.report import as_data
from retrysafe.conformance.running import read
from retrysafe.conformance.wire import address
from retrysafe.errors import ConfigurationError

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
SECONDS_TO_START = 60
_RANDOM = re.compile(r"[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}")
KEPT = ("rule", "verdict", "reason", "expected", "came")


class Server(NamedTuple):
    """The command of a server."""

    name: str
    command: Callable[[int], list[str]]
    folder: Path | None = None


def _uvicorn(module: str) -> Callable[[int], list[str]]:
    target = f"benchmarks.rivals.{module}:app"
    quiet = ["--log-level", "critical", "--no-access-log"]
    return lambda port: [sys.executable, "-m", "uvicorn", target, "--port", str(port), *quiet]


SERVERS = (
    Server("retrysafe", _uvicorn("on_retrysafe")),
    Server("idemkit", _uvicorn("on_idemkit")),
    Server("asgi-idempotency-header", _uvicorn("on_asgi_idempotency_header")),
    Server("fastapi-idempotency-key", _uvicorn("on_fastapi_idempotency_key")),
    Server("express-idempotency", lambda port: ["node", "server.js", str(port)], HERE / "express"),
    Server("fiber", lambda port: ["go", "run", ".", str(port)], HERE / "fiber"),
)


def main() -> None:
    """Check, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rivals", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(server.name for server in SERVERS))
    names = parser.parse_args().names
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for server in SERVERS:
        if names and server.name not in names:
            continue
        try:
            with started(server) as url:
                report = conformance.run(url, timeout=4.0)
        except (OSError, ConfigurationError) as error:
            print(f"{server.name}: left as it was: {error}", file=sys.stderr)
            continue
        print(f"{server.name}: {report.counts}", flush=True)
        found[server.name] = _kept(report)
    ordered = {server.name: found[server.name] for server in SERVERS if server.name in found}
    RESULTS.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def started(server: Server) -> Iterator[str]:
    """The address of a running server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(server.command(port), cwd=server.folder, start_new_session=True, **quiet)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_for(url, process)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + SECONDS_TO_START
    while True:
        try:
            read(address(url))
        except ConfigurationError:
            if process.poll() is not None or time.monotonic() > end:
                raise
            time.sleep(0.1)
        else:
            return


def _kept(report: conformance.Report) -> dict[str, Any]:
    """Select the part worth keeping: nothing that differs from run to run."""
    data = as_data(report)
    results = [{name: _RANDOM.sub("…", result[name]) for name in KEPT} for result in data["results"]]
    about = ("name", "version", "server", "mode", "choices", "counts")
    return {**{name: data[name] for name in about}, "results": results}


if __name__ == "__main__":
    main()
