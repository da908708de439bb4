"""Progress: one line that is rewritten in a terminal, an output of the cell in a notebook, and the last state alone in a file."""

import html
import shutil
import sys

# Eighths of a cell.
_BLOCKS = " ▏▎▍▌▋▊▉█"


def _in_notebook():
    """Whether the code runs in the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def clock(seconds):
    """Seconds as minutes and seconds, with hours if there are some."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes:02}:{seconds:02}"


def bar(part, cells, unicode=True):
    """A bar of so many characters, filled to a part between 0 and 1."""
    eighths = round(min(max(part, 0.0), 1.0) * cells * 8)
    whole, rest = divmod(eighths, 8)
    if not unicode:
        return ("#" * whole).ljust(cells)
    return ("█" * whole + (_BLOCKS[rest] if rest else "")).ljust(cells)


class _State:
    """What a notebook shows."""

    def __init__(self, text, part):
        self._text = text
        self._part = part

    def __repr__(self):
        return self._text

    def _repr_html_(self):
        shown = "" if self._part is None else f'<progress max="1" value="{self._part:.4f}"></progress> '
        return f"{shown}<code>{html.escape(self._text)}</code>"


class Line:
    """A line of text that changes."""

    def __init__(self, stream=None):
        self._notebook = stream is None and _in_notebook()
        self._stream = stream if stream is not None else sys.stderr
        self._handle = None
        self._written = 0

    def show(self, text, part=None):
        """Shows this text instead of the last one; `part`, between 0 and 1, is how much is done, if that is known."""
        if self._notebook:
            self._update(_State(text, part))
        elif self._stream is not None and self._stream.isatty():
            self._rewrite(text, part)

    def end(self, text, part=None):
        """Shows the last text, and ends the line."""
        if self._notebook:
            self._update(_State(text, part))
        elif self._stream is not None:
            if self._stream.isatty():
                self._rewrite(text, part)
                text = ""
            self._stream.write(f"{text}\n")
            self._stream.flush()

    def _update(self, state):
        if self._handle is None:
            from IPython.display import display

            self._handle = display(state, display_id=True)
        else:
            self._handle.update(state)

    def _rewrite(self, text, part):
        # The last column stays empty: some terminals begin a new line after it.
        columns = shutil.get_terminal_size().columns - 1
        room = columns - len(text) - 7
        if part is not None:
            unicode = (getattr(self._stream, "encoding", None) or "").lower().startswith("utf")
            drawn = f"{bar(part, min(room, 30), unicode)} " if room >= 5 else ""
            text = f"{part:4.0%} {drawn}{text}"
        text = text[:columns]
        self._stream.write(f"\r{text}{' ' * (self._written - len(text))}")
        self._stream.flush()
        self._written = len(text)
