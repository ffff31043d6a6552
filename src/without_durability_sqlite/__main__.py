"""`python -m without_durability_sqlite FILE COMMAND`."""

import sys

if __name__ == "__main__":
    try:
        from .cli.main import main

        code = main()
    except KeyboardInterrupt:  # before there was anything to tidy up
        code = 130
    sys.exit(code)
