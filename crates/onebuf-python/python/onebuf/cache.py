"""The folder of what `onebuf doctor` has proven.

>>> import onebuf as ob
>>> sorted(ob.cache.contents())
['bytes', 'programs', 'verdicts']
"""

from ._onebuf import cache_clear as clear
from ._onebuf import cache_contents as contents
from ._onebuf import cache_folder as folder

__all__ = ["clear", "contents", "folder"]
