"""`python -m onebuf`: the `onebuf` program, which is part of the package."""

import os
import sys

from ._program import program


def main():
    """Runs the program in place of this process."""
    path = program()
    if not os.access(path, os.X_OK):
        sys.exit(f"onebuf: {path} is missing: this package was put together without the program")
    os.execv(path, [str(path), *sys.argv[1:]])


if __name__ == "__main__":
    main()
