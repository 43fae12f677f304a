#!/usr/bin/env python3
"""Compares `briquette plan` with steps measured over TCP between two network namespaces, and writes plan.csv.

    benches/plan.py [BRIQUETTE]     # the command; target/release/briquette if not given

The measured steps are those of hidden.csv after the backward pass: two ranks, shaped links, dense, bf16 and top-k 100x.
"""

import csv, datetime, json, os, platform, subprocess, sys

here = os.path.dirname(os.path.abspath(__file__))
results = os.path.join(here, "results")
command = sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "../target/release/briquette")
VALUES = {"resnet20": 272282, "vgg11-slim": 579098, "bilstm": 1405316}
CONFIGS = {"dense": "reducer=dense", "bf16": "reducer=ring:bf16", "topk": "reducer=gather:topk:100x"}

with open(os.path.join(results, "hidden.csv")) as file:
    measured = [row for row in csv.DictReader(line for line in file if not line.startswith("#"))
                if row["mode"] == "after" and row["exchange"] in CONFIGS]

model = next((line.split(": ")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
rows = []
for row in measured:
    flags = ["--values", str(VALUES[row["model"]]), "--compute", f"{1000 * float(row['compute_ms']):.0f}us", "--network", row["link"],
             "--world", "2", "--compressor", "topk:100x", "--json"]
    predictions = json.loads(subprocess.run([command, "plan", *flags], check=True, capture_output=True, text=True).stdout)
    plan = next(one for one in predictions if one["config"] == CONFIGS[row["exchange"]])
    predicted = 1000 * plan["step_seconds"]
    rows.append([row["link"], row["model"], row["exchange"], row["step_ms"], row["exchange_ms"], f"{predicted:.2f}",
                 f"{predicted - float(row['compute_ms']):.2f}", f"{predicted / float(row['step_ms']):.3f}"])

with open(os.path.join(results, "plan.csv"), "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["link", "model", "exchange", "step_ms", "exchange_ms", "predicted_step_ms", "predicted_exchange_ms", "predicted_over_measured",
                     "machine", "cores", "date", "command"])
    writer.writerows(row + [model, os.cpu_count(), datetime.date.today().isoformat(), "benches/plan.py"] for row in rows)

errors = sorted(abs(float(row[-1]) - 1) for row in rows)
print(f"{sum(error <= 0.1 for error in errors)} of {len(errors)} steps within 10 %, the largest error {100 * errors[-1]:.0f} %")
