"""`python -m without_durability_sqlite FILE COMMAND`."""

import sys

from .cli.main import main

if __name__ == "__main__":
    sys.exit(main())
