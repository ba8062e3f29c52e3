"""Devices, tensors, operations and copies between devices. It imports nothing of the packages above it."""

from . import ops as ops
from . import transfer as transfer
from .backend import Memory as Memory
from .creation import arange as arange
from .creation import full as full
from .creation import ones as ones
from .creation import zeros as zeros
from .device import Device as Device
from .dtype import as_dtype as as_dtype
from .dtype import kind_of as kind_of
from .errors import AutodiffError as AutodiffError
from .errors import DeviceError as DeviceError
from .errors import DeviceMismatchError as DeviceMismatchError
from .errors import DTypeError as DTypeError
from .errors import EngineError as EngineError
from .errors import ShapeError as ShapeError
from .tensor import Tensor as Tensor
from .tensor import tensor as tensor
