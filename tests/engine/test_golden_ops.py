"""Single operations against values that PyTorch computed (`golden/ops`; the form of the files is in its README).

float64 must agree but for rounding; float32 within the error that PyTorch's
own float32 has, and a few roundings. So must the gradients of the sum of
outputs times cotangents. A file or an operation that is not known here fails:
nothing is passed over in silence.
"""

import json
from collections.abc import Callable
from functools import reduce
from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray

from engine import Tensor, ops, rotary_tables
from tests.golden_files import FOLDER, golden_file

pytestmark = pytest.mark.golden

Operands = dict[str, Tensor]
Outputs = dict[str, Tensor]

LATER: Final = {
    "optimizers": "read with the optimizers",
    "training": "a training run, read with the optimizers",
    "quant_int8_block": "it is in test_quantization_golden.py",
}
ULPS: Final = 16  # roundings of the largest output that a result may be off, over PyTorch's own error


def _activation(x: Operands, meta: Any) -> Tensor:
    functions = {"gelu_erf": ops.gelu, "gelu_tanh": lambda x: ops.gelu(x, "tanh")}
    return (functions.get(meta["fn"]) or getattr(ops, meta["fn"]))(x["x"])


def _attention(x: Operands, meta: Any) -> Tensor:
    assert meta["layout"] == "[batch, heads, time, dim]"
    assert meta["scale"] == "dim**-0.5"
    q, k = (_turned(x[name], meta, meta["offset"]) for name in ("q", "k"))
    return ops.attention(q, k, x["v"], causal=meta["causal"])


def _turned(x: Tensor, meta: Any, first: int) -> Tensor:
    time, d = x.shape[-2:]
    cos, sin = rotary_tables(first + time, d, base=meta["base"], device=x.device, dtype=x.dtype)
    return ops.rope(x, cos, sin, offset=first, interleaved={"half": False, "interleaved": True}[meta["style"]])


def _batch_norm(x: Operands, meta: Any) -> Outputs:
    momentum, epsilon = meta["momentum"], meta["eps"]
    weight, bias, mean, unbiased = x["weight"], x["bias"], x["running_mean"], x["running_var"]
    biased, outputs = unbiased, {}
    for step, batch in enumerate((x["x"], x["x2"])):
        m, v = ops.batch_statistics(batch)
        outputs[f"train{step}"] = ops.batch_norm(batch, m, v, weight, bias, epsilon)
        count = batch.size // batch.shape[1]
        m, v = m.detach(), v.detach()  # running statistics have no history
        mean = mean * (1 - momentum) + m * momentum
        biased = biased * (1 - momentum) + v * momentum
        unbiased = unbiased * (1 - momentum) + v * (momentum * count / (count - 1))
    outputs |= {"running_mean": mean, "running_var_unbiased": unbiased, "running_var_biased": biased}
    return outputs | {"eval": ops.batch_norm(x["x"], mean, unbiased, weight, bias, epsilon)}


def _conv2d(x: Operands, meta: Any) -> Tensor:
    settings = {name: tuple(meta[name]) for name in ("stride", "padding", "dilation") if name in meta}
    return ops.conv2d(x["x"], x["w"], x["b"], groups=meta.get("groups", 1), **settings)


def _max_pool2d(x: Operands, meta: Any) -> Tensor:
    padding = tuple(meta.get("padding", (0, 0)))
    return ops.max_pool2d(x["x"], tuple(meta["kernel_size"]), stride=tuple(meta["stride"]), padding=padding)


def _linear(x: Operands, meta: Any) -> Tensor:
    assert meta["weight"] == "[out, in]"
    return ops.linear(x["x"], x["w"].T, x.get("b"))


def _reduce(x: Operands, meta: Any) -> Tensor:
    op = {"sum": ops.sum, "mean": ops.mean, "var": ops.var, "amax": ops.max, "amin": ops.min, "prod": ops.prod}
    return op[meta["fn"]](x["x"], tuple(meta["axes"]), meta["keepdims"])


ELEMENTWISE: Final = {"add": ops.add, "sub": ops.subtract, "mul": ops.multiply, "div": ops.divide}
RUNS: Final[dict[str, Callable[[Operands, Any], Tensor | Outputs]]] = {
    "activation": _activation,
    "attention": _attention,
    "batch_norm": _batch_norm,
    "conv2d": _conv2d,
    "cross_entropy": lambda x, meta: ops.cross_entropy(x["x"], x["y"], meta["reduction"]),
    "cumsum": lambda x, meta: ops.cumsum(x["x"], meta["axis"]),
    "elementwise": lambda x, meta: ELEMENTWISE[meta["fn"]](x["a"], x["b"]),
    "embedding": lambda x, meta: ops.embedding(x["w"], x["ids"]),
    "gather": lambda x, meta: ops.gather(x["x"], x["i"], meta["axis"]),
    "index_select": lambda x, meta: ops.take(x["x"], x["i"], meta["axis"]),
    "layer_norm": lambda x, meta: ops.layer_norm(x["x"], x["weight"], x["bias"], meta["eps"]),
    "linear": _linear,
    "matmul": lambda x, meta: ops.matmul(x["a"], x["b"]),
    "max_pool2d": _max_pool2d,
    "reduce": _reduce,
    "rms_norm": lambda x, meta: ops.rms_norm(x["x"], x["weight"], meta["eps"]),
    "rope": lambda x, meta: _turned(x["x"], meta, meta["first_position"]),
    "scatter_add": lambda x, meta: ops.scatter_add(x["x"], x["i"], x["src"], meta["axis"]),
    "softmax": lambda x, meta: {"softmax": ops.softmax, "log_softmax": ops.log_softmax}[meta["fn"]](
        x["x"], meta["axis"]
    ),
}


def _viewed(base: Tensor, view: Any) -> Tensor:
    """The axis order and the [start, stop, step] per axis that `views` in meta asks for."""
    if view is None:
        return base
    order, slices = view.values() if isinstance(view, dict) else view
    return base.transpose(*order)[tuple(slice(*bounds) for bounds in slices)]


def _bases(cases: Any, case: str, dtype: str, device: str = "cpu:0") -> Operands:
    """The stored inputs, floats in a dtype."""
    return {
        name: Tensor.from_numpy(array.astype(dtype) if array.dtype == np.float32 else array, device)
        for name, array in _stored(cases, f"{case}/in").items()
    }


def _operands(bases: Operands, meta: Any) -> Operands:
    """The operands, which may be views of the stored inputs."""
    views = meta.get("views", {})
    unknown = set(views) - set(bases)
    assert not unknown, f"views of inputs that are not there: {unknown}"
    return {name: _viewed(base, views.get(name)) for name, base in bases.items()}


def _run(bases: Operands, meta: Any) -> Outputs:
    result = RUNS[meta["op"]](_operands(bases, meta), meta)
    return {"": result} if isinstance(result, Tensor) else result


def _stored(cases: Any, prefix: str) -> dict[str, NDArray[Any]]:
    """What stands at a prefix, by name; ``""`` for a single array."""
    return {name.removeprefix(prefix).lstrip("/"): cases[name] for name in cases.files if name.startswith(prefix)}


def _metas(cases: Any) -> dict[str, Any]:
    metas = {key.split("/")[0]: json.loads(str(cases[key])) for key in cases.files if key.endswith("/meta")}
    assert metas
    assert {key.split("/")[0] for key in cases.files} == set(metas), "a case without meta"
    return metas


def _assert_agrees(what: str, found: Tensor, dtype: str, exact: NDArray[Any], reference: NDArray[Any]) -> None:
    """Within some roundings of the largest element, in float32 over the error of the reference."""
    assert found.dtype == dtype
    assert found.shape == exact.shape
    allowed = ULPS * np.finfo(dtype).eps * max(np.abs(exact).max(initial=0), 1e-30)
    if dtype == "float32":
        allowed += np.abs(reference - exact).max(initial=0)
    off = np.abs(found.numpy() - exact).max(initial=0)
    assert off <= allowed, f"{what}: off by {off:.3g}, allowed {allowed:.3g}"


each_file = pytest.mark.parametrize("name", sorted(RUNS))
each_dtype = pytest.mark.parametrize("dtype", ["float64", "float32"])


@each_file
@each_dtype
def test_an_operation_gives_the_values_of_the_reference(name: str, dtype: str) -> None:
    with np.load(golden_file(f"ops/{name}.npz")) as cases:
        for case, meta in _metas(cases).items():
            exact, reference = _stored(cases, f"{case}/f64/out"), _stored(cases, f"{case}/f32/out")
            results = _run(_bases(cases, case, dtype), meta)
            assert results.keys() == exact.keys()
            for output, found in results.items():
                _assert_agrees(f"{case}/{output}", found, dtype, exact[output], reference[output])


@each_file
@each_dtype
def test_an_operation_has_the_gradients_of_the_reference(name: str, dtype: str) -> None:
    """L106: of Σ ⟨cotangent, output⟩ by every stored float input."""
    with np.load(golden_file(f"ops/{name}.npz")) as cases:
        for case, meta in _metas(cases).items():
            exact, reference = _stored(cases, f"{case}/f64/grad"), _stored(cases, f"{case}/f32/grad")
            bases = _bases(cases, case, dtype, "cpu:0+autodiff")
            bases |= {name: base.require_grad() for name, base in bases.items() if name in exact}
            outputs = _run(bases, meta)
            cotangents = _stored(cases, f"{case}/cot").items()
            products = [outputs[at] * Tensor.from_numpy(w.astype(dtype), "cpu:0") for at, w in cotangents]

            gradients = reduce(ops.add, map(ops.sum, products)).backward()

            floats = {name for name, base in bases.items() if base.dtype == dtype and not name.startswith("running_")}
            assert exact.keys() == floats
            assert len(gradients) == len(exact)
            for name, gradient in exact.items():
                found = bases[name].grad(gradients)
                assert found is not None
                _assert_agrees(f"{case}/grad/{name}", found, dtype, gradient, reference[name])


def test_casts_have_the_bits_of_the_reference():
    """bfloat16 and float16; no tensor has a float8, whose bits are for the formats that store it."""
    with np.load(golden_file("ops/cast.npz")) as cases:
        targets = {key.removeprefix("cast/bits/") for key in cases.files if key.startswith("cast/bits/")}
        assert targets <= {"bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"}
        x = Tensor.from_numpy(cases["cast/in/x"], "cpu:0")
        for target in sorted(targets & {"bfloat16", "float16"}):
            result, bits = x.cast(target), cases[f"cast/bits/{target}"]
            number = ~np.isnan(x.numpy())
            np.testing.assert_array_equal(np.frombuffer(result.tobytes(), "uint16")[number], bits[number])
            np.testing.assert_array_equal(result.cast("float32").numpy(), cases[f"cast/back/{target}"])


def test_every_file_is_read_or_listed_as_for_later():
    folder = FOLDER / "ops"
    if not folder.is_dir():
        golden_file("ops/matmul.npz")
    assert {file.stem for file in folder.iterdir()} <= {*RUNS, "cast", *LATER}
