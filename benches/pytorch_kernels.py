#!/usr/bin/env python3
"""Selection, quantization and a copy on a GPU in PyTorch, to compare with `briquette-device`'s example `measure`. CSV on standard output.

    python3 benches/pytorch_kernels.py [VALUES [REPEATS]]
"""

import statistics
import sys
import time

import torch

values = int(sys.argv[1]) if len(sys.argv) > 1 else 25_557_032
repeats = int(sys.argv[2]) if len(sys.argv) > 2 else 20
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
x = torch.sin(torch.arange(values, device=device, dtype=torch.float32) * 0.7) ** 5
out = torch.empty_like(x)
ROW = 2048


def wait():
    if device.type == "cuda":
        torch.cuda.synchronize()


def median(work):
    work()
    wait()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        wait()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def row(name, work, what):
    seconds = median(work)
    print(f"pytorch {torch.__version__} {device.type},{name},{what},{values},{seconds:.6f},{4e-9 * values / seconds:.2f}")


def top_k():
    _, places = torch.topk(x.abs(), values // 100, sorted=False)
    return x[places].cpu(), places.cpu()


def top_k_of_rows():
    rows = x[: values // ROW * ROW].view(-1, ROW)
    _, places = torch.topk(rows.abs(), ROW // 100, dim=1, sorted=False)
    return rows.gather(1, places).cpu(), places.cpu()


def eight_bits():
    low, high = torch.aminmax(x)
    scale = (high - low).item() / 255
    return torch.quantize_per_tensor(x, scale, round(-low.item() / scale), torch.quint8).int_repr().cpu()


print("runtime,what,work,values,seconds,gigabytes_per_second")
row("copy", lambda: out.copy_(x), "on the device")
row("topk:0.01", top_k, "encode and read")
row("chunk-topk:0.01", top_k_of_rows, "encode and read")
row("minmax", eight_bits, "encode and read")
row("sign", lambda: (x > 0).cpu(), "encode and read")
row("bf16", lambda: x.bfloat16().cpu(), "encode and read")
