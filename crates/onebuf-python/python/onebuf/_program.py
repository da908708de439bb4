"""The `onebuf` program that is part of the package."""

from pathlib import Path


def program():
    """The path of the program."""
    return Path(__file__).with_name("bin") / "onebuf"
