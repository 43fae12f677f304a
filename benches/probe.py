#!/usr/bin/env python3
"""Compares `briquette probe` with links whose bandwidth is known, between two network namespaces, and writes probe.csv.

    benches/probe.py [BRIQUETTE]     # the command; target/release/briquette if not given. Needs root, `ip` and `tc`.
"""

import csv, datetime, json, os, platform, subprocess, sys, tempfile

here = os.path.dirname(os.path.abspath(__file__))
command = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "../target/release/briquette"))
model = next((line.split(": ")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())

rows = []
for mbit in (50, 100, 300, 1000):
    for each in (1, 2):
        with tempfile.TemporaryDirectory() as directory:
            out = os.path.join(directory, "network.json")
            subprocess.run([os.path.join(here, "../scripts/two-machines.sh"), f"{mbit}mbit", command, "probe", "--time", "2s", "--out", out],
                           check=True, env={**os.environ, "RANKS_PER_MACHINE": str(each)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            with open(out) as file:
                probe = json.load(file)
        # Links of one machine are not shaped.
        across = [8e-6 * link["bytes_per_second"] for link in probe["links"] if (link["from"] < each) != (link["to"] < each)]
        ring = 8e-6 * probe["ring_bytes_per_second"]
        latency = 1e6 * max(link["latency_seconds"] for link in probe["links"])
        rows.append([mbit, 2 * each, f"{min(across):.1f}", f"{max(across):.1f}", f"{ring:.1f}", f"{ring / mbit:.3f}", f"{latency:.0f}", probe["network"]])
        print(*rows[-1])

with open(os.path.join(here, "results/probe.csv"), "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["link_mbit", "ranks", "slowest_pair_mbit", "fastest_pair_mbit", "ring_mbit", "ring_over_link", "latency_us", "network",
                     "machine", "cores", "date", "command"])
    writer.writerows(row + [model, os.cpu_count(), datetime.date.today().isoformat(), "benches/probe.py"] for row in rows)
