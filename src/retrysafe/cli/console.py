"""`retrysafe console`: see and operate a store in a browser.

Serves pages to this machine alone, as its user, and reads only unless --allow gives a right. To reach it from
elsewhere, mount `retrysafe.console.Console` behind the authentication of your application, or give --access.
Exit code: 0, or 2 if it could not be started.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from typing import Any

from retrysafe.admin.audit import AuditFile
from retrysafe.backends.spec import library
from retrysafe.claims.encryption import Keyring
from retrysafe.cli.opening import AUDIT, SECRET, add_store_option, load_object, secret_of, store_of
from retrysafe.cli.options import add_option, add_verb

_RIGHTS = "resolve, expire, redrive, pause, reveal"


def add_to(verbs: Any) -> None:
    parser = add_verb(verbs, "console", "see and operate a store in a browser", run, __doc__)
    add_store_option(parser)
    add_option(parser, "--host HOST", "where to serve", "127.0.0.1")
    add_option(parser, "--port N", "the port (default: 8765; 0: any)", 8765)
    add_option(parser, "--allow RIGHT...", f"a right beside reading: {_RIGHTS}; repeatable")
    add_option(parser, "--access MODULE:NAME", "your function from a request to a Principal, or None to refuse it")
    add_option(parser, "--name HOST...", "a name that browsers may use for it; repeatable")
    add_option(parser, "--boundary MODULE:NAME...", "a boundary to describe")
    add_option(parser, "--broker URL...", "a broker for the doctor's page; repeatable")
    add_option(parser, "--topic NAME...", "a topic or queue to look at there")
    add_option(parser, "--audit FILE", f"append the audit to FILE (default: ${AUDIT}, else the log)")
    add_option(parser, "--secret-env NAME", f"the environment variable with the boundaries' secret (default: {SECRET})")
    add_option(parser, "--encryption-keys-env NAME", "the environment variable with the boundaries' encryption keys")


def run(options: argparse.Namespace) -> int:
    serve = library("retrysafe.console.serving", "console", "The console").serve
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("retrysafe.store").setLevel(logging.WARNING)
    audit, keys = options.audit or os.environ.get(AUDIT), options.encryption_keys_env
    serve(
        store_of(options),
        host=options.host,
        port=options.port,
        rights=options.allow,
        access=None if options.access is None else load_object("--access", options.access),
        names=options.name,
        told=lambda url: print(f"console  {url}", flush=True),
        boundaries=[load_object("--boundary", one) for one in options.boundary],
        brokers=options.broker,
        topics=options.topic,
        audit=AuditFile(audit) if audit else None,
        key_secret=secret_of(options),
        encryption=None if keys is None else Keyring.from_env(keys),
    )
    return 0
