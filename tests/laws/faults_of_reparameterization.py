"""Faults of reparameterization, LoRA and `materialize`; see `faults`."""

from typing import Any

from engine import Tensor, ones
from modules import Lora, LoraAdapter, Module, Param, recording, reparameterizer, traversal
from modules.attached import Attached
from modules.parallel import check
from modules.tree import leaves, num_elements
from records import ParamId

from .faults import Patch, fault


@fault("X33 the scale is alpha instead of alpha / rank", "L86", "L87")
def _x33(patch: Patch) -> None:
    original = LoraAdapter.__init__

    def init(self: LoraAdapter, a: Param, b: Param, scale: float) -> None:
        original(self, a, b, scale * a.shape[1])

    patch.setattr(LoraAdapter, "__init__", init)


@fault("X34 materialize keeps the factors' trainability", "L34", "L89")
def _x34(patch: Patch) -> None:
    original = reparameterizer._folded

    def folded(param: Param) -> Param:
        held = [leaf.trainable for _, leaf in leaves(param.reparameterization) if isinstance(leaf, Param)]  # pyright: ignore[reportArgumentType]
        made = original(param)
        return made.set_require_grad(any(held)) if held and not made.base().is_quantized else made

    patch.setattr(reparameterizer, "_folded", folded)


@fault("Y140 what is attached is not counted", "L84")
def _y140(patch: Patch) -> None:
    def counted(self: Module) -> int:
        return sum(num_elements(leaf) for path, leaf in leaves(self) if ".identity." not in path)

    patch.setattr(Module, "num_params", counted)


@fault("Y141 materialize gives a parameter a new id", "L16", "L34", "L84", "L89")
def _y141(patch: Patch) -> None:
    original = reparameterizer._folded
    patch.setattr(reparameterizer, "_folded", lambda param: original(param).with_id(ParamId.new()))


@fault("Y142 the factor b does not start as zero", "L85")
def _y142(patch: Patch) -> None:
    patch.setattr("modules.lora.zeros", ones)


@fault("Y143 an effective value that was computed once is kept for its base", "L86")
def _y143(patch: Patch) -> None:
    original = Attached.value
    kept: dict[int, tuple[Param, Tensor]] = {}

    def value(self: Attached) -> Tensor:
        if id(self.bare) not in kept:
            kept[id(self.bare)] = self.bare, original(self)
        return kept[id(self.bare)][1]

    patch.setattr(Attached, "value", value)


@fault("Y144 LoRA leaves the bases to train", "L34", "L87")
def _y144(patch: Patch) -> None:
    original = Lora.reparameterize
    patch.setattr(Lora, "reparameterize", lambda self, path, param: (param, original(self, path, param)[1]))
    patch.setattr(Lora, "_prepared", lambda self, module: module)


@fault("Y145 a visit shows what is attached before the base", "L5", "L8", "L88")
def _y145(patch: Patch) -> None:
    def visit_attached(bare: Param, held: Any, visitor: Any, hooks: dict[str, Any], path: str) -> None:
        visitor.enter_module(held.NAME, "Reparameterization")
        traversal._visit(held, visitor, hooks, f"{path}.{held.NAME}.")
        visitor.exit_module(held.NAME, "Reparameterization")
        hooks[bare.kind](path, bare)

    patch.setattr(traversal, "_visit_attached", visit_attached)


@fault("Y146 a record holds no factors", "L53", "L59", "L90")
def _y146(patch: Patch) -> None:
    def bases(module: Any) -> Any:
        names = (".lora.", ".identity.", ".learned_scale.")
        return [(path, leaf) for path, leaf in leaves(module) if not any(name in path for name in names)]

    patch.setattr(recording, "leaves", bases)


@fault("Y147 a fork folds in what is attached", "L28", "L34", "L91")
def _y147(patch: Patch) -> None:
    original = Module.fork
    patch.setattr(Module, "fork", lambda self, device: original(self, device).materialize())


@fault("Y148 a second reparameterization is taken", "L34", "L91")
def _y148(patch: Patch) -> None:
    patch.setattr(reparameterizer, "reparameterized_paths", lambda module: iter(()))


@fault("Y149 LoRA makes every matrix", "L24")
def _y149(patch: Patch) -> None:
    original = Lora.reparameterize

    def reparameterize(self: Lora, path: str, param: Param) -> Any:
        if len(param.shape) == 2:
            param.base()
        return original(self, path, param)

    patch.setattr(Lora, "reparameterize", reparameterize)


@fault("Y150 a factor that is elsewhere is not seen", "L96")
def _y150(patch: Patch) -> None:
    original = check.leaves
    patch.setattr(check, "leaves", lambda layer: [one for one in original(layer) if ".lora." not in f".{one[0]}"])
