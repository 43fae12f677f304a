#!/usr/bin/env bash
# What exchanging during the backward pass hides: seconds of a step with the exchange after the backward pass and during it, between
# two network namespaces joined by a shaped link, beside what the simulator predicts of both.
#
#   benches/hidden.sh DATA_DIRECTORY [TARGET_DIRECTORY] > hidden.csv
#
# DATA_DIRECTORY has cifar10 and ag_news. Needs root, iproute2, python3, and `cargo build --release -p briquette-cli -p
# briquette-examples`; about 25 minutes on four cores that have nothing else to do. Each rank has a core to compute on and one to
# exchange on, where there are four. Rows take turns, so that what else the machine does meets all.
#
# RUNS=DIRECTORY keeps each run's seconds there, and does not repeat those that it has: an interrupted table goes on.
# LINKS, MODELS, EXCHANGES (also powersgd, and alone: no exchange) choose rows; TURNS, STEPS, WARM, AUTO_STEPS, AUTO_WARM and BATCH
# how long; PREDICT=0 leaves the simulator out.
#
# Columns, in milliseconds: medians over turns, of medians over the steps after the first WARM of a turn.
#   step           from the beginning of a step to that of the next on rank 0 (--trace)
#   wall_step      the same on the simulator's clock, --clock wall: it measures computing, and when gradients come
#   fixed_step     the same under --clock fixed with the median `compute` of `after`: gradients come evenly, slot after slot, over the
#                  last two thirds of it; encoding and decoding take no time
#   compute        until the exchange begins, of the slowest rank
#   exchange       encoding, communicating and decoding that the step waited for; waiting for the other rank to come is in `wait`
#   overlapped     encoding, communicating and decoding while the rank computed
#   ratio_to_max   step / max(compute, exchange), both of the same turn's run with the exchange after the backward pass
#   sum            compute + exchange, likewise: what a step takes that hides nothing. Under auto the two modes may send different bytes
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,24s/^# \{0,1\}//p' "$0"; exit 2; }
cd "$(dirname "$0")/.."
data=$1 bin=${2:-target}/release
[ -d "$data/cifar10" ] && [ -d "$data/ag_news" ] || { echo "error: $data has no cifar10 and ag_news"; exit 1; } >&2
[ "$(id -u)" = 0 ] || { echo "skipped: network namespaces want root"; exit 77; } >&2
command -v python3 > /dev/null || { echo "skipped: python3 is missing"; exit 77; } >&2
read -ra links <<< "${LINKS:-100mbit 300mbit 1gbit}"
read -ra models <<< "${MODELS:-resnet20 vgg11-slim bilstm}"
read -ra exchanges <<< "${EXCHANGES:-dense bf16 topk auto}"
batch=${BATCH:-16} turns=${TURNS:-4} predict=${PREDICT:-1}
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
runs=${RUNS:-$out/runs}
mkdir -p "$runs"
export STEPS=${STEPS:-18} WARM=${WARM:-5} AUTO_STEPS=${AUTO_STEPS:-40} AUTO_WARM=${AUTO_WARM:-20}
settings="batch $batch, steps $STEPS, warm $WARM, auto steps $AUTO_STEPS, warm $AUTO_WARM"
[ -e "$runs/settings" ] || echo "$settings" > "$runs/settings"
[ "$(cat "$runs/settings")" = "$settings" ] || { echo "error: $runs is of $(cat "$runs/settings"): choose another RUNS"; exit 2; } >&2
export RAYON_NUM_THREADS=1
cores=$(env -u OMP_NUM_THREADS nproc)
if [ "$cores" -ge 4 ]; then
    export CORES_PER_RANK=2
    after_cores=0,1 during_cores=2,3
else
    after_cores=0 during_cores=$((cores > 1))
fi

cat > "$out/part.py" <<'PYTHON'
"""part.py keep WARM DIRECTORY [TRACE] > PART: a run's seconds. part.py row LINK MODEL EXCHANGE RUNS: rows from parts. part.py header.
part.py compute PARTS: median milliseconds."""
import glob, json, statistics, sys
COLUMNS = ("link,model,exchange,mode,steps,bytes_per_step,ratio,step_ms,compute_ms,exchange_ms,wait_ms,overlapped_ms,"
           "ratio_to_max,sum_ms,step_over_sum,wall_step_ms,measured_over_wall,wall_ratio_to_max,fixed_step_ms,measured_over_fixed")

def keep(warm, directory, trace=None):
    warm = int(warm)
    records = [json.loads(line) for line in open(f"{directory}/metrics.jsonl")]
    if trace:
        begins = [event["ts"] / 1e6 for event in json.load(open(trace)) if event.get("name") == "compute" and event["ph"] == "B"]
    else:
        # A record has the clock at the end of its step.
        begins = [0.0] + [record["simulated_seconds"] for record in records]
    steps = [end - begin for begin, end in zip(begins, begins[1:])]
    part = {"step": steps[warm:]}
    records = records[warm:warm + len(part["step"])]
    part["bytes"] = [record["bytes_sent"] for record in records]
    part["ratio"] = [record["ratio"] or 1 for record in records]
    for name in ("compute", "wait", "overlapped"):
        part[name] = [record[f"{name}_seconds"] for record in records]
    spent = lambda r: r["compress_seconds"] + r["exchange_seconds"] - r["wait_seconds"]
    part["exchange"] = [spent(record) for record in records]
    json.dump(part, sys.stdout)

def turns(pattern):
    return [json.load(open(name)) for name in sorted(glob.glob(pattern))]

def median(parts, key):
    """Over turns, of the medians over a turn's steps."""
    return statistics.median(statistics.median(part[key]) for part in parts)

def compute(pattern):
    print(f"{1e3 * median(turns(pattern), 'compute'):.3f}")

def row(link, model, exchange, runs):
    after = {}
    for mode in ("after", "during"):
        name = f"{runs}/{link}-{model}-{exchange}-{mode}"
        parts = {kind: turns(f"{name}-{kind}-*.json") for kind in ("real", "wall", "fixed")}
        if not parts["real"]:
            continue
        after = after or parts
        # Each turn beside its own run with the exchange after the backward pass.
        beside = lambda kind, of: statistics.median(of(median([part], "step"), median([other], "compute"), median([other], "exchange"))
                                                    for part, other in zip(parts[kind], after[kind]))
        over_max = lambda step, compute, exchange: step / max(compute, exchange)
        over_sum = lambda step, compute, exchange: step / (compute + exchange)
        real = parts["real"]
        step = median(real, "step")
        total = median(after["real"], "compute") + median(after["real"], "exchange")
        values = [link, model, exchange, mode, sum(len(part["step"]) for part in real), round(median(real, "bytes")),
                  f"{median(real, 'ratio'):.1f}"]
        values += [f"{1e3 * median(real, key):.2f}" for key in ("step", "compute", "exchange", "wait", "overlapped")]
        values += [f"{beside('real', over_max):.3f}", f"{1e3 * total:.2f}", f"{beside('real', over_sum):.3f}"]
        if parts["wall"]:
            expected = median(parts["wall"], "step")
            values += [f"{1e3 * expected:.2f}", f"{step / expected:.3f}", f"{beside('wall', over_max):.3f}"]
        else:
            values += ["", "", ""]
        expected = median(parts["fixed"], "step") if parts["fixed"] else None
        values += [f"{1e3 * expected:.2f}", f"{step / expected:.3f}"] if expected else ["", ""]
        print(",".join(map(str, values)), flush=True)

if sys.argv[1] == "header":
    print(COLUMNS, flush=True)
else:
    {"keep": keep, "row": row, "compute": compute}[sys.argv[1]](*sys.argv[2:])
PYTHON
part() { python3 "$out/part.py" "$@"; }

# flags MODEL EXCHANGE MODE: the trainer and its flags, in `program` and `flags`.
flags() {
    # Fewer samples would have fewer words, and the text model fewer parameters.
    flags=(--batch "$batch" --train-limit 8192 --test-limit 64 --epochs 1 --checkpoint-every 0 --slots-every 0 --schedule constant
        --plain --overwrite --model "$1")
    case $1 in
        bilstm) program=$bin/ag-news flags+=(--data "$data/ag_news") ;;
        *) program=$bin/cifar flags+=(--data "$data/cifar10" --lr 0.02) ;;
    esac
    steps=$STEPS warm=$WARM
    case $2 in
        dense) flags+=(--reducer dense) ;;
        bf16) flags+=(--reducer ring:bf16) ;;
        topk) flags+=(--compressor topk:0.01 --feedback error) ;;
        powersgd) flags+=(--reducer power-sgd:2) ;;
        # No exchange at all, both ranks computing: what benches/ddp.sh subtracts.
        alone) flags+=(--strategy local-sgd:1000000) ;;
        # Learns for longer.
        auto) steps=$AUTO_STEPS warm=$AUTO_WARM ;;
        *) echo "error: EXCHANGES: no $2" >&2; exit 2 ;;
    esac
    if [ "$3" = during ]; then flags+=(--overlap backward); fi
    flags+=(--steps "$steps")
}

# checked LOG COMMAND...: quiet unless it fails; the exit code of what cannot be run here.
checked() {
    local log=$1 status=0
    shift
    timeout -k 20 300 "$@" > "$log" 2>&1 &
    wait $! || status=$?
    if [ $status -ne 0 ]; then
        tail -n 20 "$log" >&2
        echo "failed with $status: $*" >&2
    fi
    return $status
}

real() {
    local link=$1 model=$2 exchange=$3 mode=$4 keep=$runs/$1-$2-$3-$4-real-$5.json status=0
    [ ! -s "$keep" ] || return 0
    flags "$model" "$exchange" "$mode"
    checked "$out/log" scripts/two-machines.sh "$link" "$program" "${flags[@]}" --out "$out/run" --trace "$out/trace.json" || status=$?
    [ $status -eq 0 ] || return $status
    part keep "$warm" "$out/run" "$out/trace.json" > "$keep.part"
    mv "$keep.part" "$keep"
}

# predicted LINK MODEL EXCHANGE MODE CORES MILLISECONDS: on cores of its own, by both clocks; by a measured one twice. Under it ranks compute one
# after the other.
predicted() {
    local link=$1 model=$2 exchange=$3 mode=$4 cores=$5 kind clock keep
    trap stop INT TERM
    flags "$model" "$exchange" "$mode"
    for kind in fixed-1 wall-1 wall-2; do
        keep=$runs/$link-$model-$exchange-$mode-$kind.json clock=wall
        if [ $kind = fixed-1 ]; then clock=fixed:$6ms; fi
        [ ! -s "$keep" ] || continue
        checked "$out/log-$mode" taskset -c "$cores" "$program" "${flags[@]}" --ranks 2 --network "$link,50us" --clock "$clock" \
            --out "$out/run-$mode" || return $?
        part keep "$warm" "$out/run-$mode" > "$keep.part"
        mv "$keep.part" "$keep"
    done
}

begin=$SECONDS count=0 total=$((${#links[@]} * ${#models[@]}))
part header
for link in "${links[@]}"; do
    for model in "${models[@]}"; do
        for turn in $(seq "$turns"); do
            for exchange in "${exchanges[@]}"; do
                for mode in after during; do
                    [ "$exchange-$mode" != alone-during ] || continue
                    real "$link" "$model" "$exchange" "$mode" "$turn" || exit $?
                done
            done
        done
        for exchange in "${exchanges[@]}"; do
            if [ "$predict" = 1 ] && [ "$exchange" != alone ]; then
                # Both at once: as in the real world, two ranks use the machine's memory.
                compute=$(part compute "$runs/$link-$model-$exchange-after-real-*.json")
                predicted "$link" "$model" "$exchange" after $after_cores "$compute" &
                after=$!
                status=0
                predicted "$link" "$model" "$exchange" during $during_cores "$compute" || status=$?
                wait $after || status=$?
                [ $status -eq 0 ] || exit $status
            fi
            part row "$link" "$model" "$exchange" "$runs"
        done
        count=$((count + 1))
        echo "$count of $total models and links, $((SECONDS - begin)) s: $link $model" >&2
    done
done
