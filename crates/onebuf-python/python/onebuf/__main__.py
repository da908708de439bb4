"""`python -m onebuf`: the `onebuf` program, which is part of the package."""

import os
import sys
from pathlib import Path


def program():
    """The path of the program."""
    return Path(__file__).with_name("bin") / "onebuf"


def main():
    """Runs the program in place of this process."""
    path = program()
    if not os.access(path, os.X_OK):
        sys.exit(f"onebuf: {path} is missing: this package was put together without the program")
    os.execv(path, [str(path), *sys.argv[1:]])


if __name__ == "__main__":
    main()
