"""`python -m retrysafe` is the command line."""

import sys

from retrysafe.cli import main

if __name__ == "__main__":
    sys.exit(main())
