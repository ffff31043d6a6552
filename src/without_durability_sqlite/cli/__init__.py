"""The command line: `main` is where it begins."""
