#!/usr/bin/env python3
"""Writes link traces for `--network trace:FILE` and `scripts/two-machines.sh trace:FILE`, from a seed.

    benches/traces.py DIRECTORY [--seed 1] [--length SECONDS]
    benches/traces.py DIRECTORY --mahimahi FILE...

Each trace has a length of its own; --length makes all of them this long, for short runs. The same seed gives the same bytes.

--mahimahi converts recorded links instead: files in which a line is the millisecond of an opportunity to send 1500 bytes. Debian's package
mahimahi-traces has uplinks of mobile networks of 2013 (K. Winstein, A. Sivaraman, H. Balakrishnan, Stochastic Forecasts Achieve High
Throughput and Low Delay over Cellular Networks, NSDI 2013). They record bandwidth only: the latency is 25 ms, to be changed by --latency.
"""
import argparse
import collections
import math
import pathlib
import random


def square(_):
    """10 Mbit/s and 1 Gbit/s, 2 minutes each."""
    return 480, [(120 * i, (1000, 10)[i % 2], (1, 5)[i % 2]) for i in range(4)]


def office(draw):
    """A day and night of an office: 200 Mbit/s at night, a tenth of it or less at the busiest hours, a row for each hour."""
    rows = []
    for hour in range(24):
        busy = math.exp(-((hour - 10.5) / 2.0) ** 2) + math.exp(-((hour - 15.0) / 2.0) ** 2)
        free = 200 * (1 - 0.94 * min(busy, 1)) * math.exp(draw.gauss(0, 0.2))
        rows.append((3600 * hour, round(min(free, 200), 1), 5 if free > 100 else 20))
    return 86400, rows


def bursts(draw):
    """A neighbour's uploads: 200 Mbit/s alone, 10 Mbit/s during an upload. Both last heavy-tailed seconds (Pareto, shape 1.5)."""
    at, rows, alone = 0.0, [], True
    while at < 1800:
        rows.append((round(at, 1), 200 if alone else 10, 2 if alone else 40))
        at += min((30 if alone else 20) * draw.paretovariate(1.5), 300)
        alone = not alone
    return 1800, rows


def wifi(draw):
    """Fading: a random walk of the signal between 2 and 300 Mbit/s, a row each 10 s."""
    rows, signal = [], 0.7
    for second in range(0, 600, 10):
        signal += 0.25 * (0.6 - signal) + draw.gauss(0, 0.22)
        signal = min(max(signal, 0.0), 1.0)
        rows.append((second, round(2 * 150 ** signal, 1), round(2 + 28 * (1 - signal), 1)))
    return 600, rows


def slow_link(draw):
    """Four ranks at 1 Gbit/s, of which the last one's paths fall to 20 Mbit/s for a while, again and again."""
    at, rows, slow = 0.0, [(0, 1000, 1)], False
    while at < 1200:
        rows.append((round(at, 1), 20 if slow else 1000, 10 if slow else 1, "*/3"))
        at += 30 + draw.expovariate(1 / 60)
        slow = not slow
    return 1200, rows


def decline(_):
    """1 Gbit/s that declines to 5 Mbit/s, in 24 steps."""
    return 1200, [(50 * i, round(1000 * 200 ** (-i / 23), 1), 1) for i in range(24)]


# Seconds in which the bandwidth of a recorded link is averaged.
BIN = 0.5


def recorded(file, latency):
    """Returns the length and the rows of a recorded link, a row for each change."""
    sent = collections.Counter(int(int(line) / 1000 / BIN) for line in file.read_text().split())
    bins = max(sent)  # the last one may be incomplete
    speeds = [round(sent[i] * 1500 * 8 / BIN / 1e6, 3) for i in range(bins)]
    changed = [i for i in range(bins) if i == 0 or speeds[i] != speeds[i - 1]]
    return bins * BIN, [(i * BIN, speeds[i], latency) for i in changed]


def write(path, comments, length, rows):
    columns = max(map(len, rows))
    with open(path, "w") as file:
        for comment in comments:
            print(f"# {comment}", file=file)
        print("seconds,mbit,ms" + ",path" * (columns > 3), file=file)
        for row in rows:
            cells = [f"{row[0]:.9g}", *(f"{cell}" for cell in row[1:])]
            print(",".join(cells + [""] * (columns - len(row))), file=file)
        print(f"{length:.9g}" + "," * (columns - 1), file=file)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("directory", type=pathlib.Path)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--length", type=float)
    arguments.add_argument("--mahimahi", type=pathlib.Path, nargs="+", metavar="FILE", default=[])
    arguments.add_argument("--latency", type=float, default=25, metavar="MS")
    arguments = arguments.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    for file in arguments.mahimahi:
        comments = [f"The link recorded in {file.name}.", f"benches/traces.py --mahimahi {file.name} --latency {arguments.latency:g}"]
        write(arguments.directory / f"{file.name.replace('.', '-')}.csv", comments, *recorded(file, arguments.latency))
    if arguments.mahimahi:
        return
    for trace in (square, office, bursts, wifi, slow_link, decline):
        length, rows = trace(random.Random(f"{arguments.seed} {trace.__name__}"))
        scale = (arguments.length or length) / length
        made = f"benches/traces.py --seed {arguments.seed}" + (f" --length {arguments.length:g}" if arguments.length else "")
        rows = [(row[0] * scale, *row[1:]) for row in rows]
        name = trace.__name__.replace("_", "-")
        write(arguments.directory / f"{name}.csv", [trace.__doc__, made], length * scale, rows)


main()
