"""The engine's exceptions. Each is also the built-in kind of error that a Python user would catch."""


class EngineError(Exception):
    """Base of every error that Layerloom raises itself."""


class DeviceError(EngineError, ValueError):
    """A device that does not exist, cannot be used here, or has no memory left."""


class DeviceMismatchError(DeviceError):
    """An operation was given values of more than one device."""


class ShapeError(EngineError, ValueError):
    """Shapes that an operation cannot combine, or an axis that a value does not have."""


class DTypeError(EngineError, TypeError):
    """Dtypes that an operation cannot combine or does not take."""


class AutodiffError(EngineError, RuntimeError):
    """A gradient was asked of a value that cannot have one."""


class QuantizationError(EngineError, ValueError):
    """Numbers that a quantized tensor cannot hold: NaN, infinities, or scales that are not positive and finite."""
