#!/usr/bin/env python3
"""Steps of PyTorch's DistributedDataParallel over gloo, and of the same models without it, on every rank at once: `benches/ddp.sh` runs it.

One rank, whose RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are in the environment; rank 0 writes JSON with seconds of each step.

    benches/ddp.py --out FILE --models resnet20,bilstm --exchanges dense,fp16,powersgd --batch 16 --steps 12 --turns 2

DDP runs at its default buckets (one of 1 MB, then 25 MB each) and at eighths of the model, of which Briquette has as many. PowerSGD
has one bucket: with several its hook begins its second exchanges in another order on each rank, which gloo does not forgive (it
hangs). Ranks keep running statistics of their own, as Briquette's do; gradients are views of the buckets.
"""

import argparse
import datetime
import json
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import pytorch_steps

BUCKETS = {"dense": ["default", "eighths"], "fp16": ["default", "eighths"], "powersgd": ["one"]}


def wrapped(model, exchange, buckets, start):
    size = sum(p.numel() for p in model.parameters()) * 4 / 2**20
    megabytes = {"default": None, "eighths": size / 8, "one": 2 * size}[buckets]
    model = DistributedDataParallel(model, bucket_cap_mb=megabytes, broadcast_buffers=False, gradient_as_bucket_view=True)
    if exchange == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif exchange == "powersgd":
        # Two dense steps at least are PyTorch's own condition for error feedback and a warm start.
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=start)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return model


def seconds(name, batch, steps, warm, exchange, buckets):
    """Of each step after `warm`; without an `exchange` the model alone."""
    torch.manual_seed(1)
    model = pytorch_steps.MODELS[name]()
    text = name == "bilstm"
    if text:
        inputs = (torch.arange(batch * 48) * 7919 % 20000 + 2).reshape(batch, 48)
        optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    else:
        inputs = torch.randn(batch, 3, 32, 32)
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    labels = torch.arange(batch) % (4 if text else 10)
    if exchange:
        model = wrapped(model, exchange, buckets, start=2)
    dist.barrier()
    times = []
    for step in range(warm + steps):
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        loss.item()
        if step >= warm:
            times.append(time.perf_counter() - begin)
    dist.barrier()
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--models", default="resnet20,vgg11-slim,bilstm")
    parser.add_argument("--exchanges", default="dense,fp16,powersgd")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--warm", type=int, default=5)
    parser.add_argument("--turns", type=int, default=2)
    arguments = parser.parse_args()
    if unknown := set(arguments.exchanges.split(",")) - set(BUCKETS):
        parser.error(f"--exchanges: no {', '.join(unknown)}; there are {', '.join(BUCKETS)}")
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    # The ends of the link that scripts/two-machines.sh makes.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", f"v{rank}")
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    results = {"torch": torch.__version__, "parameters": {}, "seconds": {}}
    for name in arguments.models.split(","):
        if name not in pytorch_steps.MODELS:
            parser.error(f"--models {name}: one of {', '.join(pytorch_steps.MODELS)}")
        results["parameters"][name] = sum(p.numel() for p in pytorch_steps.MODELS[name]().parameters())
        rows = [("alone", None, None)]
        rows += [(f"{exchange} {buckets}", exchange, buckets) for exchange in arguments.exchanges.split(",") for buckets in BUCKETS[exchange]]
        # What is subtracted, before and after.
        rows.append(rows[0])
        for turn in range(arguments.turns):
            for label, exchange, buckets in rows:
                times = seconds(name, arguments.batch, arguments.steps, arguments.warm, exchange, buckets)
                results["seconds"].setdefault(f"{name} {label}", []).append(times)
                if rank == 0:
                    print(f"{name} {label}, turn {turn + 1}: {1e3 * sorted(times)[len(times) // 2]:.1f} ms", flush=True)
    if rank == 0:
        with open(arguments.out + ".part", "w") as file:
            json.dump(results, file)
        os.replace(arguments.out + ".part", arguments.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
