"""`python -m without_durability_sqlite FILE COMMAND`."""

import sys


def main() -> int:
    """The command line, Ctrl-C during its imports included."""
    try:
        from .cli.main import main as command_line

        return command_line()
    except KeyboardInterrupt:  # before there was anything to tidy up
        return 130


if __name__ == "__main__":
    sys.exit(main())
