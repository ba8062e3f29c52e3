"""Layers: a module where something is configured; what takes no settings is a function in `engine.ops`."""

from .attention import KeyValueCache as KeyValueCache
from .attention import MultiHeadAttention as MultiHeadAttention
from .embedding import Embedding as Embedding
from .feed_forward import FeedForward as FeedForward
from .feed_forward import GatedFeedForward as GatedFeedForward
from .linear import Linear as Linear
from .normalization import LayerNorm as LayerNorm
from .normalization import RmsNorm as RmsNorm
from .rotary import RotaryPositions as RotaryPositions
