from ._onebuf import cache_clear as clear
from ._onebuf import cache_contents as contents
from ._onebuf import cache_folder as folder

__all__ = ["clear", "contents", "folder"]
