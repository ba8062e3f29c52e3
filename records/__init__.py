"""Checkpoints: records in memory and in files. It knows names, ids, dtypes, shapes and bytes, never a Module."""

from .adapt import Join as Join
from .adapt import KeyRemapper as KeyRemapper
from .adapt import Step as Step
from .adapt import Transpose as Transpose
from .adapt_changes import StepChanges as StepChanges
from .adapt_trained import Cast as Cast
from .adapt_trained import Drop as Drop
from .adapt_trained import NormNames as NormNames
from .entry import ForeignDType as ForeignDType
from .entry import RecordEntry as RecordEntry
from .errors import RecordError as RecordError
from .errors import RecordFormatError as RecordFormatError
from .errors import RecordIoError as RecordIoError
from .errors import RecordValidationError as RecordValidationError
from .opening import open_record as open_record
from .param_id import ParamId as ParamId
from .record import LoadOptions as LoadOptions
from .record import ModuleRecord as ModuleRecord
from .scalar import Scalar as Scalar
