"""`retrysafe gateway`: guard an HTTP service in any language, without changing it.

A reverse proxy in front of the service: requests with an Idempotency-Key run once, and retries get the first response.
Prints its settings and guarantees, then serves until SIGTERM. Exit code: 0, or 2 if it could not be started.
`retrysafe gateway mcp` guards tools of an MCP server.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
from pathlib import Path
from typing import Any

from retrysafe.backends.commands import STORE
from retrysafe.boundary import Boundary
from retrysafe.cli.opening import SECRET, add_store_option, store_of
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
    _add_mcp(parser.add_subparsers(title="verbs", metavar="VERB"))


def _add_mcp(verbs: Any) -> None:
    parser = verbs.add_parser(
        "mcp",
        help="guard tools of an MCP server over stdio",
        description="Run an MCP server over stdio, and do each call of the tools that are named once.",
    )
    add_store_option(parser)
    parser.add_argument("--name", metavar="NAME", required=True, help="the server's name, part of every key's identity")
    parser.add_argument(
        "--guard",
        metavar="TOOL=ARGUMENT",
        action="append",
        required=True,
        help="a tool, and the argument that names the intent; TOOL alone: only _meta has the key; may be repeated",
    )
    parser.add_argument(
        "--principal", metavar="NAME", required=True, help="the user whose calls these are; shared: all users are one"
    )
    parser.add_argument(
        "--effects",
        choices=("external", "keyed"),
        default="external",
        help="external (default): never call again after a doubt; keyed: the server knows the key in _meta",
    )
    parser.add_argument("--window", metavar="TIME", default="24h", help="how long results are kept (default: 24h)")
    parser.add_argument("command", metavar="COMMAND", nargs="+", help="behind --, the server and its arguments")
    parser.set_defaults(run=run_mcp)


def run_mcp(options: argparse.Namespace) -> int:
    """Stand in front of an MCP server."""
    from retrysafe.agents.gateway import Gateway

    boundary = Boundary(options.name, store=store_of(options), effects=options.effects, window=options.window)
    tools = {tool: argument or None for tool, _, argument in (guard.partition("=") for guard in options.guard)}

    async def serve() -> None:
        await boundary.acheck()
        await Gateway(boundary, tools, options.command, options.principal).run()
        await boundary.aclose()

    asyncio.run(serve())
    return 0


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
