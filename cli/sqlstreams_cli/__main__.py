"""`python -m sqlstreams_cli` is the command too."""

import sys

from sqlstreams_cli.main import main

if __name__ == "__main__":
    sys.exit(main())
