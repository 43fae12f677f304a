#!/usr/bin/env python3
"""Kills random ranks of an elastic world for a while, and measures how long the others stand still.

    scripts/elastic_soak.py SECONDS [--ranks 4] [--every 5] [--seed 1] [--data DIR] [--csv FILE]

Starts `briquette launch --elastic 2 --rejoin --tls` with the trainer `ag-news` as built (`--programs`, the debug build by default), kills a
rank with SIGKILL at random times, `--every` seconds apart on average and only while all ranks are there, and ends the run with SIGINT.
A stall is the time from a kill to the first step that the others complete. Fails if the world ends, if a step is missing or recorded
twice, or if a process has more descriptors at the end than 20 above its first count.
"""

import argparse
import collections
import csv
import datetime
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def children(launcher):
    """Returns the processes of the ranks, by rank."""
    found = {}
    for pid in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        ranks = [int(value[5:]) for value in variables if value.startswith(b"RANK=")]
        if ranks:
            found[ranks[0]] = int(pid)
    return found


def lines(path):
    try:
        return path.read_bytes().count(b"\n")
    except OSError:
        return 0


def resources(pid):
    """Returns the descriptors and the resident MiB of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    resident = int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) / 1024
    return len(os.listdir(f"/proc/{pid}/fd")), resident


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--every", type=float, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--data", help="directory of AG-News; generated data without it")
    parser.add_argument("--csv", default=ROOT / "benches/results/elastic-soak.csv")
    target = os.environ.get("CARGO_TARGET_DIR", ROOT / "target")
    parser.add_argument("--programs", default=Path(target) / "debug", type=Path)
    args = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="elastic-"))
    launcher, trainer = args.programs / "briquette", args.programs / "ag-news"
    subprocess.run([launcher, "cert", "--out", work / "certs"], check=True, stdout=subprocess.DEVNULL)
    data = f"--data {args.data}" if args.data else "--dataset generated"
    flags = f"{data} --model lstm --train-limit 2000 --batch {args.batch} --epochs 100000 --optimizer adam --lr 0.0005 --threads 1 --checkpoint-every 0"
    command = [launcher, "launch", "--ranks", str(args.ranks), "--elastic", "2", "--rejoin", "--tls", work / "certs", "--"]
    command += [trainer, *flags.split(), "--eval-every", "1000", "--ranks", str(args.ranks), "--out", work / "run"]
    log = open(work / "log", "w")
    world = subprocess.Popen([str(part) for part in command], stdout=log, stderr=log)
    metrics, rng = work / "run/metrics.jsonl", random.Random(args.seed)
    stalls, first, last, seen, kills = [], {}, {}, collections.Counter(), 0
    said = lambda: (work / "log").read_text()
    try:
        begin, next_kill = time.monotonic(), 10.0
        while time.monotonic() - begin < args.seconds:
            time.sleep(0.05)
            if world.poll() is not None:
                sys.exit(f"the world ended: {said()[-3000:]}")
            if time.monotonic() - begin < next_kill:
                continue
            # All ranks are members again.
            worlds = re.findall(r"generation \d+: (\d+) ranks go on", said())
            ranks = children(world.pid)
            if lines(metrics) == 0 or len(ranks) < args.ranks or worlds and int(worlds[-1]) < args.ranks:
                continue
            for rank, pid in ranks.items():
                last[pid] = resources(pid)
                seen[pid] += 1
                first.setdefault(pid, last[pid])
            victim = rng.choice(sorted(ranks))
            before, killed = lines(metrics), time.monotonic()
            os.kill(ranks[victim], signal.SIGKILL)
            kills += 1
            # A step that was complete already may be recorded after the kill; the one after it was not.
            while lines(metrics) < before + 2 and time.monotonic() - killed < 120 and world.poll() is None:
                time.sleep(0.002)
            stalls.append(time.monotonic() - killed)
            next_kill = time.monotonic() - begin + rng.expovariate(1 / args.every) + 0.5
        world.send_signal(signal.SIGINT)
        code = world.wait(timeout=120)
    finally:
        if world.poll() is None:
            # A second interrupt ends the ranks at once. Ranks of a killed launcher would go on.
            world.send_signal(signal.SIGINT)
            time.sleep(1)
            world.send_signal(signal.SIGINT)
            world.wait(timeout=60)
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    problems = []
    if steps != list(range(len(steps))):
        problems.append("steps are missing or recorded twice")
    if code not in (0, 130):
        problems.append(f"exit code {code}: {said()[-2000:]}")
    grown = [(pid, first[pid], last[pid]) for pid in last if last[pid][0] > first[pid][0] + 20]
    if grown:
        problems.append(f"descriptors grow: {grown}")
    model = next((line.split(": ")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    # The process that was there for most of the kills.
    age = max(seen, key=seen.get) if seen else None
    row = {
        "ranks": args.ranks,
        "seconds": args.seconds,
        "kills": kills,
        "steps": len(steps),
        "median_stall_seconds": round(statistics.median(stalls), 3) if stalls else "",
        "maximum_stall_seconds": round(max(stalls), 3) if stalls else "",
        "seconds_per_step": round(args.seconds / max(len(steps), 1), 3),
        "descriptors_first": first[age][0] if age else "",
        "descriptors_last": last[age][0] if age else "",
        "resident_mib_first": round(first[age][1]) if age else "",
        "resident_mib_last": round(last[age][1]) if age else "",
        "machine": model,
        "cores": os.cpu_count(),
        "date": datetime.date.today().isoformat(),
        "command": f"scripts/elastic_soak.py {args.seconds:g} --ranks {args.ranks} --every {args.every:g} --seed {args.seed} --batch {args.batch}",
    }
    print(json.dumps(row, indent=1))
    if problems:
        sys.exit("; ".join(problems) + f" (log: {work / 'log'})")
    with open(args.csv, "a", newline="") as file:
        writer = csv.DictWriter(file, row, lineterminator="\n")
        if file.tell() == 0:
            writer.writeheader()
        writer.writerow(row)


if __name__ == "__main__":
    main()
