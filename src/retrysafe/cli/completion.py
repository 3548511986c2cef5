"""`retrysafe completion`: print a script that completes verbs and options in a shell.

For bash: `retrysafe completion bash > ~/.local/share/bash-completion/completions/retrysafe`; for zsh:
`retrysafe completion zsh > DIRECTORY/_retrysafe` in a directory of its fpath. It needs the extra `completion`.
"""

from __future__ import annotations

import argparse
from typing import Any

from retrysafe import cli
from retrysafe.backends.commands import PROGRAM
from retrysafe.backends.spec import library
from retrysafe.cli.options import add_option, add_verb


def add_to(verbs: Any) -> None:
    parser = add_verb(verbs, "completion", "print a script for completion in a shell", run, __doc__)
    add_option(parser, "shell", "the shell", choices=["bash", "zsh"])


def run(options: argparse.Namespace) -> int:
    shtab = library("shtab", "completion", "retrysafe completion")
    print(shtab.complete(cli.make_parser(PROGRAM), shell=options.shell))
    return 0
