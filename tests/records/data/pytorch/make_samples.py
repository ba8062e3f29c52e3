"""Makes the files beside it with PyTorch: ``python make_samples.py`` in an environment that has it.

They are data: the tests read them and have the expected numbers of their own,
and PyTorch is needed for nothing else. Made with PyTorch 2.13.
"""

from collections import OrderedDict
from pathlib import Path

import torch

HERE = Path(__file__).parent


def counted(*shape: int, dtype: torch.dtype = torch.float32, start: int = 0) -> torch.Tensor:
    """start, start + 1, … in a shape."""
    count = torch.Size(shape).numel()
    return torch.arange(start, start + count).reshape(shape).to(dtype)


def network() -> torch.nn.Module:
    """A network whose parameters count up from 0, 100, 200, …"""
    model = torch.nn.Sequential(
        OrderedDict(
            embed=torch.nn.Embedding(5, 4),
            linear=torch.nn.Linear(4, 3),
            norm=torch.nn.LayerNorm(3),
            batch=torch.nn.BatchNorm1d(3),
            conv=torch.nn.Conv2d(1, 2, 2, bias=False),
        )
    )
    state = OrderedDict(
        (name, counted(*old.shape, dtype=old.dtype, start=100 * number))
        for number, (name, old) in enumerate(model.state_dict().items())
    )
    model.load_state_dict(state)
    return model


def main() -> None:
    model = network()
    torch.save(model.state_dict(), HERE / "state_dict.pt")
    torch.save(model.state_dict(), HERE / "before_1_6.pth", _use_new_zipfile_serialization=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 7, "name": "run 1"},
               HERE / "training_run.pt")  # fmt: skip
    table = counted(3, 4)
    torch.save(
        {
            "whole": table,
            "turned": table.T,
            "parameter": torch.nn.Parameter(table[1:, ::2]),
            "repeated": counted(3).expand(2, 3),
            "number": torch.tensor(2.5),
            "empty": torch.zeros(0, 3),
            "nothing": None,
        },
        HERE / "views.pt",
    )
    names = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool"
    dtypes = {name: torch.tensor([0, 1, 3]).to(getattr(torch, name)) for name in names.split()}
    others = {name: torch.zeros(2).to(getattr(torch, name)) for name in ("complex64", "float8_e4m3fn")}
    torch.save({**dtypes, **others}, HERE / "dtypes.pt")
    torch.save(model, HERE / "whole_module.pt")
    torch.serialization.set_crc32_options(False)
    torch.save({"w": counted(2)}, HERE / "without_crc.pt")


if __name__ == "__main__":
    main()
