"""Named MessagePack, the checkpoint files of Burn 0.8 to 0.21: reading those of every release, writing for one."""

from .item import KIND_KEY as KIND_KEY
from .reader import read_named_mpk as read_named_mpk
from .writer import write_named_mpk as write_named_mpk
