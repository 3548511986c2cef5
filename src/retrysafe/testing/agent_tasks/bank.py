"""A bank that charges by HTTP, in a process of its own: a request with a known idempotency key changes nothing.

`python bank.py LEDGER` prints its port.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LEDGER = "CREATE TABLE IF NOT EXISTS ledger (account TEXT, key TEXT, UNIQUE (account, key))"


class _Bank(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        account = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        with closing(sqlite3.connect(sys.argv[1], timeout=60)) as ledger, ledger:
            ledger.execute("INSERT OR IGNORE INTO ledger VALUES (?, ?)", (account, self.headers.get("Idempotency-Key")))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def charges(ledger: str, account: str) -> int:
    with closing(sqlite3.connect(ledger, timeout=60)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM ledger WHERE account = ?", (account,)).fetchone()
    return int(count)


if __name__ == "__main__":
    with closing(sqlite3.connect(sys.argv[1])) as made:
        made.execute("PRAGMA journal_mode = WAL")
        made.execute(LEDGER)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Bank)
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()
