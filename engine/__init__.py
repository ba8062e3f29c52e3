"""Devices, tensors, operations and copies between devices. It imports nothing of the packages above it."""

from . import ops as ops
from . import transfer as transfer
from .backend import Memory as Memory
from .buffer import Buffer as Buffer
from .creation import arange as arange
from .creation import causal_mask as causal_mask
from .creation import full as full
from .creation import ones as ones
from .creation import rotary_tables as rotary_tables
from .creation import zeros as zeros
from .decoding import cached_attention as cached_attention
from .device import Device as Device
from .dtype import as_dtype as as_dtype
from .dtype import kind_of as kind_of
from .errors import AutodiffError as AutodiffError
from .errors import DeviceError as DeviceError
from .errors import DeviceMismatchError as DeviceMismatchError
from .errors import DTypeError as DTypeError
from .errors import EngineError as EngineError
from .errors import ShapeError as ShapeError
from .random import Key as Key
from .random import Seed as Seed
from .random import randn as randn
from .random import uniform as uniform
from .tensor import Tensor as Tensor
from .written import tensor as tensor
