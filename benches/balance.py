#!/usr/bin/env python3
"""Trains ranks of unequal speed with equal batches and with shares by speed, and writes benches/results/balance.csv.

    benches/balance.py --data DIR [--programs target/release] [--seeds 3]

Each row is a run of `ag-news` (LSTM, four simulated ranks, 64 ms for 16 samples at speed 1). The ideal is the time of all samples at
the sum of the speeds. Exchanges take no time, so that the rows show the balance alone. Simulated seconds; accuracy on the test samples.
"""

import argparse
import csv
import datetime
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SPEEDS = {"1:1:1:0.1": (1, 1, 1, 0.1), "4:2:1:1": (4, 2, 1, 1), "1:1:1:1": (1, 1, 1, 1)}
STRATEGIES = {"every-step": "--strategy every-step --reducer dense", "local-sgd:8": "--strategy local-sgd:8 --reducer dense"}
BATCH, SECONDS, LIMIT, EPOCHS = 16, 0.064, 4000, 4


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--programs", type=Path, default=ROOT / "target/release")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--csv", type=Path, default=ROOT / "benches/results/balance.csv")
    args = parser.parse_args()
    model = next((line.split(": ")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    rows = []
    for speeds, values in SPEEDS.items():
        clock = "fixed:" + ",".join(f"{1000 * SECONDS / speed:g}ms" for speed in values) + f";samples={BATCH}"
        for strategy, flags in STRATEGIES.items():
            for balance in ("off", "auto"):
                runs = [run(args, clock, flags, balance, seed) for seed in range(1, args.seeds + 1)]
                ideal = EPOCHS * LIMIT * SECONDS / BATCH / sum(values)
                seconds = statistics.mean(run["simulated_seconds"] for run in runs)
                accuracies = [100 * run["final_test_accuracy"] for run in runs]
                error = statistics.stdev(accuracies) / len(runs) ** 0.5 if len(runs) > 1 else ""
                rows.append({
                    "speeds": speeds, "strategy": strategy, "balance": balance, "seeds": len(runs), "steps": runs[0]["steps"],
                    "seconds": round(seconds, 2), "ideal_seconds": round(ideal, 2), "times_ideal": round(seconds / ideal, 3),
                    "accuracy_percent": round(statistics.mean(accuracies), 2), "standard_error": error and round(error, 2),
                    "machine": model, "cores": os.cpu_count(), "date": datetime.date.today().isoformat(),
                    "command": "benches/balance.py --data DIR",
                })
                print(rows[-1], flush=True)
    with open(args.csv, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def run(args, clock, flags, balance, seed):
    with tempfile.TemporaryDirectory() as out:
        command = f"--data {args.data} --model lstm --train-limit {LIMIT} --epochs {EPOCHS} --batch {BATCH} --ranks 4 --eval-every {EPOCHS}"
        command += f" --network unlimited --clock {clock} --balance {balance} --seed {seed} --checkpoint-every 0 --plain --out {out}/run {flags}"
        subprocess.run([args.programs / "ag-news", *command.split()], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return json.loads(Path(out, "run/summary.json").read_text())


main()
