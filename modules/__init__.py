"""The Module system: trees of parameters as values, and what can be done with all of them at once."""

from .containers import Array as Array
from .containers import skip as skip
from .display import DisplaySettings as DisplaySettings
from .display import display as display
from .draws import Draws as Draws
from .enum_module import EnumModule as EnumModule
from .errors import FrozenModuleError as FrozenModuleError
from .errors import GroupError as GroupError
from .errors import ModuleError as ModuleError
from .errors import PathError as PathError
from .flag import Flag as Flag
from .group import ParamGroup as ParamGroup
from .module import Module as Module
from .optim import SGD as SGD
from .optim import Adam as Adam
from .optim import AdamW as AdamW
from .optim import clip_norm as clip_norm
from .optim import clip_value as clip_value
from .param import Param as Param
from .param import ParamMappers as ParamMappers
from .recording import LoadResult as LoadResult
from .recording import Mismatch as Mismatch
from .running_state import RunningState as RunningState
from .traversal import ModuleMapper as ModuleMapper
from .traversal import ModuleVisitor as ModuleVisitor
from .traversal import list_param_ids as list_param_ids
