"""The rows that buffers of tests are filled with."""

import torch
from tensordict import TensorDict

ROWS = 20


def row(number: int) -> TensorDict:
    return TensorDict(
        {
            "obs": torch.full((4,), number + 0.5),
            "image": torch.full((2, 3), number, dtype=torch.uint8),
            "reward": torch.tensor(number + 0.25, dtype=torch.float64),
            "done": torch.tensor([True]),
            "step": torch.tensor(number),
        }
    )
