"""Reparameterizations: modules that compute the value of a parameter, as layers see it, from the stored one."""

from .attached import Attachable
from .module import Module
from .reserved import reserved_names


class Reparameterization(Module, Attachable):
    """Computes the effective value of a parameter from its base; subclass it, name it, and write `apply`.

    It is an ordinary module: what it holds is trained, moved, recorded and
    matched by groups under ``PATH.NAME.…``, below the parameter's own path
    (A5). Layers read `Param.val`, which runs `apply` each time, and need not
    know (A6, A7). `Module.materialize` stores the effective values instead.

    Weight normalisation, after T. Salimans and D. P. Kingma (2016), as a user would write it::

        class WeightNorm(Reparameterization):
            NAME = "weight_norm"

            def __init__(self, weight):
                self.g = Param(norm(weight))

            def apply(self, base):
                return base * (self.g.val() / norm(base))

        class WeightNormed(Reparameterizer):
            def reparameterize(self, path, param):
                if len(param.shape) < 2:
                    return param, None
                return param, WeightNorm(param.base().set_require_grad(False))

        def norm(weight):  # of what leads to each output, the last axis of a Linear's weight
            return ops.sqrt(ops.sum(ops.square(weight), axis=tuple(range(weight.ndim - 1)), keepdims=True))

        model = model.apply_reparameterization(WeightNormed())

    Source: Burn 0.23, ``Reparameterization``.
    """


Reparameterization._reserved = reserved_names(Reparameterization)
