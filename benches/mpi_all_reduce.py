"""Median seconds of a float32 all-reduce, by vector size: for `--bin collectives`, under its mpiexec.

Prints `bytes repeats seconds` on rank 0. Each rank runs on one core, as the ranks over TCP do.
"""
import os
import sys
import time

import numpy
from mpi4py import MPI

comm = MPI.COMM_WORLD
cores = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, {cores[comm.rank % len(cores)]})
for size in map(int, sys.argv[1:]):
    out, into = numpy.full(size // 4, 0.5, numpy.float32), numpy.empty(size // 4, numpy.float32)
    repeats = min(max(2_000_000_000 // (size * comm.size), 9), 1001)
    times = []
    for _ in range(repeats + 2):
        comm.Barrier()
        begin = time.perf_counter()
        comm.Allreduce(out, into)
        times.append(time.perf_counter() - begin)
    slowest = numpy.max(comm.gather(times[2:]) or [[0.0]], axis=0)
    if comm.rank == 0:
        print(size, repeats, numpy.median(slowest), flush=True)
