"""Optimizers: what makes a new module of a module and gradients, and gradients smaller before."""

from .adam import Adam as Adam
from .adam import AdamW as AdamW
from .clipping import clip_norm as clip_norm
from .clipping import clip_value as clip_value
from .sgd import SGD as SGD
