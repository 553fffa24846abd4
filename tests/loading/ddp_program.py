"""One rank of a training with DistributedDataParallel, run by test_distributed.py: it trains, is interrupted, and resumes."""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import xarray as xr
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import xarray_tensordict  # noqa: F401 - registers ds.td

folder, rank, workers, shuffle = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
EPOCHS, INTERRUPTED = 3, (1, 2)
"""How many epochs there are, and the epoch and the batch behind which the first run stops."""

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
ds = xr.open_dataset(folder / "rows.zarr", engine="tensordict")
model = DistributedDataParallel(torch.nn.Linear(1, 1))
optimiser = torch.optim.SGD(model.parameters(), 1e-9)


def made(**options):
    data = ds.td.to_torch_dataset(4, shuffle=shuffle, seed=3, buffer_size=8, **options)
    if not workers:
        return data, data.batches
    loader = DataLoader(data, batch_size=None, num_workers=workers, collate_fn=data.collate)
    return data, loader


def train(data, batches, first, stop=None):
    """Train from an epoch on; each step waits for the gradients of the other rank."""
    chooses_epoch = data if workers else batches
    found = []
    for epoch in range(first, EPOCHS):
        chooses_epoch.set_epoch(epoch)
        found.append([])
        for step, batch in enumerate(batches):
            model(batch["x"]).sum().backward()
            optimiser.step()
            found[-1].append(batch["n"].tolist())
            if (epoch, step) == stop:
                return found
    return found


whole = train(*made(), 0)
data, batches = made()
before = train(data, batches, 0, INTERRUPTED)
epoch, step = INTERRUPTED
if workers:
    after = train(*made(epoch=epoch, start=step + 1), epoch)
else:
    state = [batches.state_dict()]
    dist.broadcast_object_list(state)  # only one rank saves a checkpoint
    data, batches = made()
    batches.load_state_dict(state[0])
    after = train(data, batches, epoch)
chosen = train(data, batches, epoch, INTERRUPTED)
everything = ds.td.batches(4, rank=0, world_size=1)
(folder / f"{rank}.json").write_text(json.dumps([whole, before, after, chosen, len(everything), repr(data)]))
dist.barrier()
dist.destroy_process_group()
