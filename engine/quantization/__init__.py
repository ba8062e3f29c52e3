"""Quantized tensors: small integers, or codes of small floats, with scales per tensor or block."""

from .calibration import Calibration as Calibration
from .operations import dequantize as dequantize
from .operations import quantize as quantize
from .operations import quantize_like as quantize_like
from .scheme import BlockScale as BlockScale
from .scheme import QuantScheme as QuantScheme
from .scheme import QuantStore as QuantStore
from .scheme import QuantValue as QuantValue
from .scheme import ScaleDtype as ScaleDtype
