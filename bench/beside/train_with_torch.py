"""Training the model of `bench.train` in eager PyTorch; it takes the package torch.

``losses`` of ``steps``: the loss before each of so many steps, from the initial values. ``train`` of ``steps``: the
``seconds`` that so many steps take, from wherever it is.
"""

import importlib
import json
from time import perf_counter
from typing import Any

from serve import serve


class Training:
    """A stem, blocks ``x + relu(linear(x))``, a head, the mean squared error, and Adam."""

    def __init__(self, file: str, threads: int) -> None:
        torch = importlib.import_module("torch")
        torch.set_num_threads(threads)
        self.torch = torch
        self.version = f"torch {torch.__version__}, {torch.get_num_threads()} threads"
        with open(file, "rb") as stream:  # noqa: PTH123
            self.header = json.loads(stream.readline())
            numbers = torch.frombuffer(bytearray(stream.read()), dtype=torch.float32)
        parts = numbers.split([rows * columns for rows, columns in self.header["shapes"]])
        arrays = [part.reshape(shape) for part, shape in zip(parts, self.header["shapes"], strict=True)]
        *self.initial, self.x, self.target = arrays
        self.reset()

    def reset(self) -> None:
        """Begin with the initial values; a weight is held as [out, in], as the usual code has it."""
        weights = [
            array.T.contiguous() if place % 2 == 0 else array[0].clone() for place, array in enumerate(self.initial)
        ]
        self.parameters = [weight.requires_grad_() for weight in weights]
        self.optimizer = self.torch.optim.Adam(self.parameters, lr=self.header["lr"])

    def step(self) -> Any:
        """One step; gives the loss before it."""
        functional = self.torch.nn.functional
        (w, b), *blocks, (head_w, head_b) = zip(self.parameters[::2], self.parameters[1::2], strict=True)
        x = functional.linear(self.x, w, b)
        for weight, bias in blocks:
            x = x + functional.relu(functional.linear(x, weight, bias))
        loss = functional.mse_loss(functional.linear(x, head_w, head_b), self.target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def answer(training: Training, request: dict[str, Any]) -> dict[str, Any]:
    """What a request asks for."""
    if request["do"] == "losses":
        training.reset()
        return {"losses": [float(training.step()) for _ in range(request["steps"])]}
    start = perf_counter()
    for _ in range(request["steps"]):
        training.step()
    return {"seconds": perf_counter() - start}


def load(file: str, threads: int) -> Training:
    """The model and data in a file: a line of JSON, then float32 numbers."""
    return Training(file, threads)


if __name__ == "__main__":
    serve(load, answer)
