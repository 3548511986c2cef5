"""The console: what operators see and do, as web pages over the verbs of the command line.

`Console` is an ASGI application. Mount it behind the authentication of your own application, with an ``access``
function that names who is there and what they may do, or run ``retrysafe console`` on your own machine. All users read
only, until ``access`` gives a right.
"""

from __future__ import annotations

from retrysafe.console.access import EVERY_RIGHT, Local, Principal, Right
from retrysafe.console.app import Console

__all__ = ["EVERY_RIGHT", "Console", "Local", "Principal", "Right"]
