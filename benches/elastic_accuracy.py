#!/usr/bin/env python3
"""Trains elastic worlds with and without lost ranks, and writes benches/results/elastic-accuracy.csv.

    benches/elastic_accuracy.py --data DIR [--programs target/release] [--seeds 3] [--models "bilstm;resnet8"] [--exchanges NAME ...]

Each pair of runs has the same settings and seed, over loopback. In the second run, a random rank is killed every 50 steps and started
again (`briquette launch --elastic 2 --rejoin`). Rows have the means over the seeds, and of the differences of the pairs.
"""

import argparse
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

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
from elastic_soak import ROOT, children, lines  # noqa: E402

RANKS, EVERY = 4, 50
TOP_K = "--reducer gather:topk:10x --feedback error"
EXCHANGES = {
    "dense": "--strategy every-step --reducer dense",
    "auto": "",
    "local-sgd:5": "--strategy local-sgd:5 --reducer dense",
    "diloco:5, top-k 10x": f"--strategy diloco:5 {TOP_K}",
    "diloco:5,momentum=0.5, top-k 10x": f"--strategy diloco:5,momentum=0.5 {TOP_K}",
}
MODELS = {
    "bilstm": "ag-news --data {data}/ag_news --model bilstm --optimizer adam --lr 0.004 --batch 32 --epochs 2",
    "resnet8": "cifar --data {data}/cifar10 --model resnet8 --optimizer sgd --momentum 0.9 --lr 0.2 --weight-decay 5e-4 --augment flip "
    "--train-limit 20000 --batch 32 --epochs 2",
}
MODELS["resnet8, 6 epochs"] = MODELS["resnet8"].replace("--epochs 2", "--epochs 6")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--programs", type=Path, default=ROOT / "target/release")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", default=";".join(MODELS), help="separated by semicolons")
    parser.add_argument("--exchanges", nargs="*", default=list(EXCHANGES), help="names of the table in this file")
    parser.add_argument("--csv", type=Path, default=ROOT / "benches/results/elastic-accuracy.csv")
    args = parser.parse_args()
    machine = next((line.split(": ")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    for model in args.models.split(";"):
        for exchange, flags in ((name, EXCHANGES[name]) for name in args.exchanges):
            pairs = []
            for seed in range(1, args.seeds + 1):
                pairs.append([run(args, model, flags, seed, is_disturbed) for is_disturbed in (False, True)])
                print(model, exchange, seed, [round(100 * run["final_test_accuracy"], 2) for run in pairs[-1]], flush=True)
            calm, disturbed = ([100 * pair[at]["final_test_accuracy"] for pair in pairs] for at in (0, 1))
            differences = [b - a for a, b in zip(calm, disturbed)]
            row = {
                "model": model, "exchange": exchange, "seeds": len(pairs),
                "steps": pairs[0][0]["steps"], "steps_disturbed": round(statistics.mean(pair[1]["steps"] for pair in pairs)),
                "losses": round(statistics.mean(pair[1]["elastic"]["lost_ranks"] for pair in pairs), 1),
                "accuracy": round(statistics.mean(calm), 2), "accuracy_disturbed": round(statistics.mean(disturbed), 2),
                "difference": round(statistics.mean(differences), 2), "standard_error": error(differences),
                "standard_error_of_accuracy": error(calm),
                "machine": machine, "cores": os.cpu_count(), "date": datetime.date.today().isoformat(),
                "command": f"benches/elastic_accuracy.py --data DIR --seeds {args.seeds} --models {args.models}",
            }
            with open(args.csv, "a", newline="") as file:
                writer = csv.DictWriter(file, row, lineterminator="\n")
                if file.tell() == 0:
                    writer.writeheader()
                writer.writerow(row)


def error(values):
    return round(statistics.stdev(values) / len(values) ** 0.5, 2) if len(values) > 1 else ""


def run(args, model, flags, seed, is_disturbed):
    with tempfile.TemporaryDirectory() as work:
        out, rng = Path(work, "run"), random.Random(seed)
        program, *own = MODELS[model].format(data=args.data).split()
        common = f"--ranks {RANKS} --schedule one-cycle --seed {seed} --threads 1 --eval-every 100 --checkpoint-every 0 --plain --out {out}"
        launch = f"launch --ranks {RANKS} --elastic 2 --rejoin --"
        command = [args.programs / "briquette", *launch.split(), args.programs / program, *own, *common.split(), *flags.split()]
        with open(Path(work, "log"), "w+") as log:
            world = subprocess.Popen(command, stdout=log, stderr=log)
            try:
                due = EVERY
                while world.poll() is None:
                    time.sleep(0.01)
                    if not is_disturbed or lines(out / "metrics.jsonl") < due:
                        continue
                    ranks = children(world.pid)
                    worlds = re.findall(r"generation \d+: (\d+) ranks go on", Path(work, "log").read_text())
                    if len(ranks) == RANKS and worlds[-1:] in ([], [str(RANKS)]):
                        os.kill(rng.choice(sorted(ranks.items()))[1], signal.SIGKILL)
                        due += EVERY
            finally:
                if world.poll() is None:
                    world.send_signal(signal.SIGINT)
                    world.wait(timeout=60)
            log.seek(0)
            if world.returncode:
                sys.exit(f"exit code {world.returncode}: {log.read()[-3000:]}")
        return json.loads((out / "summary.json").read_text())


if __name__ == "__main__":
    main()
