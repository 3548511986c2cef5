"""`retrysafe gateway`: guard an HTTP service in any language, without changing it.

A reverse proxy in front of the service: requests with an Idempotency-Key run once, and retries get the first response.
Prints its settings and guarantees, then serves until SIGTERM. Exit code: 0, or 2 if it could not be started.
`retrysafe gateway mcp` guards tools of an MCP server.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

from retrysafe.agents.gateway import Gateway
from retrysafe.backends.commands import STORE
from retrysafe.backends.spec import library
from retrysafe.boundary import Boundary
from retrysafe.cli.opening import SECRET, add_store_option, store_of
from retrysafe.cli.options import add_option, add_verb
from retrysafe.cli.rendering import say


def add_to(verbs: Any) -> None:
    parser = add_verb(verbs, "gateway", "guard an HTTP service in any language", run, __doc__)
    add_option(parser, "--upstream URL", "the service: http://HOST:PORT")
    add_option(parser, "--store URL", f"the store, as in Boundary(store=…) (default: ${STORE})")
    add_option(parser, "--config FILE", "routes and all other settings, as TOML", type=Path)
    add_option(parser, "--listen HOST:PORT", "where to serve (default: 127.0.0.1:8080)")
    add_option(parser, "--admin HOST:PORT", "where health and metrics are (default: under /-/)")
    add_option(parser, "--principal shared", "all clients are one; else [principal] of --config")
    add_option(parser, "--workers N", "number of processes (default: 1)")
    add_option(parser, "--openapi FILE", "routes from the service's OpenAPI document, or /PATH on it")
    add_option(parser, "--check", "print settings and guarantees, and exit")
    _add_mcp(parser.add_subparsers(title="verbs", metavar="VERB"))


def _add_mcp(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "mcp",
        "guard tools of an MCP server over stdio",
        run_mcp,
        "Run an MCP server over stdio, and do each call of the tools that are named once.",
    )
    add_store_option(parser)
    add_option(parser, "--name NAME", "the server's name, part of every key's identity", required=True)
    add_option(
        parser,
        "--guard TOOL=ARGUMENT...",
        "a tool, and the argument that names the intent; TOOL alone: only _meta has the key; may be repeated",
        required=True,
    )
    add_option(parser, "--principal NAME", "the user whose calls these are; shared: all users are one", required=True)
    add_option(
        parser,
        "--effects",
        "external (default): never call again after a doubt; keyed: the server knows the key in _meta",
        "external",
        choices=("external", "keyed"),
    )
    add_option(parser, "--window TIME", "how long results are kept", "24h")
    add_option(parser, "command COMMAND", "behind --, the server and its arguments", nargs="+")


def run_mcp(options: argparse.Namespace) -> int:
    boundary = Boundary(options.name, store=store_of(options), effects=options.effects, window=options.window)
    tools = {tool: argument or None for tool, _, argument in (guard.partition("=") for guard in options.guard)}

    async def serve() -> None:
        await boundary.acheck()
        await Gateway(boundary, tools, options.command, options.principal).run()
        await boundary.aclose()

    asyncio.run(serve())
    return 0


def run(options: argparse.Namespace) -> int:
    serving = library("retrysafe.gateway.serving", "gateway", "The gateway")
    settings = serving.settings_of(options, store=STORE, secret=SECRET)
    guards = serving.Guards(settings)
    say(serving.summary(settings, guards))
    if not options.check:
        if warning := asyncio.run(serving.check_store(guards)):
            print(warning, flush=True)
        serving.serve(settings, lambda line: print(line, flush=True))
    return 0
