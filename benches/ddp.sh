#!/usr/bin/env bash
# What communication adds to a step, in Briquette and in PyTorch's DistributedDataParallel over gloo: two ranks in network
# namespaces joined by a shaped link, on the same cores, one thread each to compute with.
#
#   benches/ddp.sh DATA_DIRECTORY [TARGET_DIRECTORY] > ddp.csv
#
# Needs what benches/hidden.sh needs, and PYTHON (python3 if absent) with torch; about 25 minutes on four idle cores, 15 where RUNS is
# that of a table of benches/hidden.sh, whose runs then count here. RUNS=DIRECTORY keeps what was measured, and goes on from it;
# LINKS, MODELS, TURNS, STEPS, WARM and BATCH are as there.
#
# Each side's own compute is taken off: the median step of the same model on both ranks at once, which exchange nothing (Briquette:
# Local SGD whose first average never comes; PyTorch: the model without DDP). Frameworks compute at different speeds, and a slower backward
# pass has more to hide behind: read `added` beside `compute`. DDP is at its better buckets, which are named.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 2; }
cd "$(dirname "$0")/.."
data=$1 target=${2:-target}
python=${PYTHON:-python3}
export LINKS=${LINKS:-100mbit 300mbit 1gbit} MODELS=${MODELS:-resnet20 vgg11-slim bilstm}
export BATCH=${BATCH:-16} TURNS=${TURNS:-4} STEPS=${STEPS:-18} WARM=${WARM:-5}
"$python" -c 'import torch.distributed as d; assert d.is_gloo_available()' 2> /dev/null \
    || { echo "skipped: $python has no torch with gloo: pip install torch in a virtual environment, and name its python in PYTHON"; exit 77; } >&2
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
# What is asked to end ends what it started.
stop() {
    trap - INT TERM
    kill $(jobs -p) 2> /dev/null || true
    wait
    exit 130
}
trap stop INT TERM
export RUNS=${RUNS:-$out/runs}
mkdir -p "$RUNS"

echo "Briquette:" >&2
EXCHANGES="alone dense bf16 powersgd" PREDICT=0 benches/hidden.sh "$data" "$target" > "$out/ours.csv" &
wait $!

if [ "$(env -u OMP_NUM_THREADS nproc)" -ge 4 ]; then
    export CORES_PER_RANK=2
fi
begin=$SECONDS
for link in $LINKS; do
    keep=$RUNS/$link-ddp.json
    if [ ! -s "$keep" ]; then
        echo "DDP at $link:" >&2
        # It is told to leave out as many steps as ours, and one less in all: the last one of ours has no end in its trace.
        LAUNCHER=$target/release/briquette OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1 \
            timeout -k 20 900 scripts/two-machines.sh "$link" "$python" \
            benches/ddp.py --out "$keep" --models "${MODELS// /,}" --batch "$BATCH" --turns "$TURNS" --warm "$WARM" \
            --steps $((STEPS - WARM - 1)) >&2 &
        wait $!
        echo "$((SECONDS - begin)) s" >&2
    fi
done

"$python" - "$RUNS" "$LINKS" "$MODELS" "$BATCH" <<'PYTHON'
import glob, json, statistics, sys
runs, links, models, batch = sys.argv[1:]

def ours(link, model, exchange, mode, key="step"):
    """Of each turn the median."""
    parts = [json.load(open(name)) for name in sorted(glob.glob(f"{runs}/{link}-{model}-{exchange}-{mode}-real-*.json"))]
    return [statistics.median(part[key]) for part in parts]

median = statistics.median
added = lambda steps, alone: 1e3 * median(step - compute for step, compute in zip(steps, alone))
print("# Milliseconds a step: medians over turns, of medians over a turn's steps. added = step - compute of the same turn, where compute is")
print("# a step of two ranks that compute at once and exchange nothing.")
print("# Ours: during the backward pass (ours_after_added_ms: after it). sixteen-bits: ring:bf16 beside fp16_compress_hook; powersgd:")
print(f"# rank 2 on both sides, error feedback, warm start. Batch {batch} a rank; one thread computes, a second core of each rank is free to exchange.")
print("link,model,exchange,ours_added_ms,ddp_added_ms,ours_step_ms,ddp_step_ms,ours_compute_ms,ddp_compute_ms,ours_after_added_ms,"
      "ddp_buckets,torch")
for link in links.split():
    results = json.load(open(f"{runs}/{link}-ddp.json"))
    for model in models.split():
        # A dense ring of two ranks sends every value once.
        values, count = median(ours(link, model, "dense", "after", "bytes")) / 4, results["parameters"][model]
        if abs(values / count - 1) > 0.02:
            sys.exit(f"error: {model} has {count} parameters in PyTorch, and ours sends {values:.0f} values")
        theirs = {name.removeprefix(f"{model} "): [median(turn) for turn in turns]
                  for name, turns in results["seconds"].items() if name.startswith(f"{model} ")}
        # Measured at the beginning and at the end of a turn.
        alone = [median(pair) for pair in zip(theirs["alone"][::2], theirs["alone"][1::2])]
        for exchange, (our, their) in {"dense": ("dense", "dense"), "sixteen-bits": ("bf16", "fp16"), "powersgd": ("powersgd",) * 2}.items():
            best = min((name for name in theirs if name.startswith(f"{their} ")), key=lambda name: added(theirs[name], alone))
            step, after, compute = (ours(link, model, *which) for which in ((our, "during"), (our, "after"), ("alone", "after")))
            row = [added(step, compute), added(theirs[best], alone), *(1e3 * median(s) for s in (step, theirs[best], compute, alone)),
                   added(after, compute)]
            print(",".join([link, model, exchange, *(f"{value:.1f}" for value in row), best.split()[1], results["torch"]]))
PYTHON
