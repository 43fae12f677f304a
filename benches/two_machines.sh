#!/usr/bin/env bash
# Measured against predicted: AG-News between two network namespaces at 100 Mbit/s, and in the simulator on one core.
#   benches/two_machines.sh AG_NEWS_DIRECTORY [TARGET_DIRECTORY] > two-machines.csv      (needs root, iproute2, python3)
set -euo pipefail
cd "$(dirname "$0")/.."
data=$1 bin=${2:-target}/release
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
export RAYON_NUM_THREADS=1
echo "exchange,steps,bytes_sent,measured_seconds,predicted_seconds,measured_over_predicted,measured_compute_seconds,predicted_compute_seconds,same_losses_and_bytes"
row() {
    local name=$1 steps=$2
    shift 2
    local flags=(--data "$data" --model bilstm --batch 32 --train-limit 8192 --test-limit 64 --steps "$steps" --epochs 1
        --checkpoint-every 0 --schedule constant --plain "$@")
    scripts/two-machines.sh 100mbit "$bin/ag-news" "${flags[@]}" --out "$out/real" --overwrite >&2
    taskset -c 0 "$bin/ag-news" "${flags[@]}" --ranks 2 --network 100mbit,50us --out "$out/predicted" --overwrite >&2
    # The first two steps warm up.
    python3 - "$name" "$out" <<'PYTHON'
import json, sys
name, out = sys.argv[1:]
real, predicted = ([json.loads(line) for line in open(f"{out}/{run}/metrics.jsonl")] for run in ("real", "predicted"))
total = lambda records, key: sum(record[key] for record in records[2:])
# The slowest rank's computing has the wait for it, which the exchange has too.
measured = sum(total(real, part + "_seconds") for part in ("compute", "compress", "exchange")) - total(real, "wait_seconds")
simulated = predicted[-1]["simulated_seconds"] - predicted[1]["simulated_seconds"]
seen = lambda records: [(record["loss"], record["bytes_sent"]) for record in records]
print(f"{name},{len(real) - 2},{total(real, 'bytes_sent')},{measured:.3f},{simulated:.3f},{measured / simulated:.3f},"
      f"{total(real, 'compute_seconds'):.3f},{total(predicted, 'compute_seconds'):.3f},{seen(real) == seen(predicted)}", flush=True)
PYTHON
}
row dense 40 --reducer dense
row topk 100 --compressor topk:0.01 --feedback error
row gravac 100 --feedback error --controller gravac:20x,max=100x,epsilon=0.4,window=25
