"""The library's messages as records of the logger "onebuf" and its children."""

import logging

_LEVELS = {"ERROR": logging.ERROR, "WARN": logging.WARNING, "INFO": logging.INFO, "DEBUG": logging.DEBUG, "TRACE": 5}

# What is wanted is decided by `onebuf.log_level`, before it comes here.
logging.getLogger("onebuf").setLevel(1)


def emit(level, target, text):
    """Logs one message; the target is a path of Rust, such as `onebuf_core::buffer`."""
    name = target.replace("::", ".").replace("onebuf_", "onebuf.", 1)
    logging.getLogger(name).log(_LEVELS[level], "%s", text)
