"""`retrysafe gateway`: guard an HTTP service in any language, without changing it.

A reverse proxy in front of the service: requests with an Idempotency-Key run once, and retries get the first response.
Prints its settings and guarantees, then serves until SIGTERM. Exit code: 0, or 2 if it could not be started.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
from pathlib import Path
from typing import Any

from retrysafe.backends.commands import STORE
from retrysafe.cli.opening import SECRET
from retrysafe.cli.rendering import say
from retrysafe.errors import ConfigurationError

_NEEDED = ("aiohttp", "httptools", "jwt", "prometheus_client", "uvicorn")


def add_to(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "gateway",
        help="guard an HTTP service in any language",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--upstream", metavar="URL", help="the service: http://HOST:PORT")
    parser.add_argument("--store", metavar="URL", help=f"the store, as in Boundary(store=…) (default: ${STORE})")
    parser.add_argument("--config", metavar="FILE", type=Path, help="routes and all other settings, as TOML")
    parser.add_argument("--listen", metavar="HOST:PORT", help="where to serve (default: 127.0.0.1:8080)")
    parser.add_argument("--admin", metavar="HOST:PORT", help="where health and metrics are (default: under /-/)")
    parser.add_argument("--principal", metavar="shared", help="all clients are one; else [principal] of --config")
    parser.add_argument("--workers", metavar="N", type=int, help="number of processes (default: 1)")
    parser.add_argument("--openapi", metavar="FILE", help="routes from the service's OpenAPI document, or /PATH on it")
    parser.add_argument("--check", action="store_true", help="print settings and guarantees, and exit")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serve."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(f"The gateway needs {', '.join(missing)}: pip install 'retrysafe[gateway]'.")
    from retrysafe.gateway.guards import Guards
    from retrysafe.gateway.serving import settings_of, summary

    settings = settings_of(options, store=STORE, secret=SECRET)
    guards = Guards(settings)
    say(summary(settings, guards))
    if not options.check:
        from retrysafe.gateway.serving import check_store, serve

        if warning := asyncio.run(check_store(guards)):
            print(warning, flush=True)
        serve(settings, lambda line: print(line, flush=True))
    return 0
