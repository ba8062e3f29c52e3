"""Layers: a module where something is configured; what takes no settings is a function in `engine.ops`."""

from .attention import KeyValueCache as KeyValueCache
from .attention import MultiHeadAttention as MultiHeadAttention
from .batch_norm import BatchNorm as BatchNorm
from .convolution import Conv2d as Conv2d
from .convolution import MaxPool2d as MaxPool2d
from .dropout import Dropout as Dropout
from .embedding import Embedding as Embedding
from .feed_forward import FeedForward as FeedForward
from .feed_forward import GatedFeedForward as GatedFeedForward
from .linear import Linear as Linear
from .normalization import LayerNorm as LayerNorm
from .normalization import RmsNorm as RmsNorm
from .rotary import RotaryPositions as RotaryPositions
