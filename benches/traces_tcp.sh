#!/usr/bin/env bash
# Steps over real TCP on links that follow a trace, and the same steps simulated: prediction against measurement.
# Two machines that are not there (scripts/two-machines.sh: root, ip, tc), with one rank each and with two each.
#
#   benches/traces_tcp.sh PROGRAMS CSV [TRACE...]      benches/traces_tcp.sh target/release benches/results/traces-tcp.csv
#
# PROGRAMS is the directory of changing_link and briquette, built in release mode. A rank sleeps 50 ms and exchanges 400 thousand random
# values; nothing is trained. The simulation has the median compute and codec seconds of the measured run, and the latency of loopback.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2; }
cd "$(dirname "$0")/.."
programs=$1 csv=$2
shift 2
[ $# -gt 0 ] || set -- benches/data/traces/square.csv benches/data/traces/wifi.csv
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf 'strategy = "every-step"\nfeedback = "error"\nreducer = "ladder"\ncontroller = "cost-aware:20x"\n' > "$work/cost-aware 20x.toml"
printf 'strategy = "every-step"\nfeedback = "error"\nreducer = "gather:topk:20x:q8"\ncontroller = "none"\n' > "$work/top-k 20x.toml"
printf 'strategy = "every-step"\nfeedback = "none"\nreducer = "ring:int8"\ncontroller = "none"\n' > "$work/8-bit ring.toml"
echo "trace,ranks,row,measured_seconds,predicted_seconds,predicted_over_measured,steps,machine,cores,date,command" > "$csv"
for trace in "$@"; do
    # Loopback has no latency of its own, and tc here cannot add any.
    awk -F, -v OFS=, '/^#/ || /^seconds/ { print; next } NF > 2 && $2 != "" { $3 = "0.05" } { print }' "$trace" > "$work/trace.csv"
    for each in 1 2; do
        for config in "cost-aware 20x" "top-k 20x" "8-bit ring"; do
            flags=(--config "$work/$config.toml" --steps 400 --values 400000)
            RANKS_PER_MACHINE=$each scripts/two-machines.sh "trace:$trace" "$programs/changing_link" "${flags[@]}" \
                --csv "$work/measured.csv" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
            compute=$(python3 - "$work/measured.csv" <<'EOF'
import csv, statistics, sys
rows = list(csv.DictReader(open(sys.argv[1])))
print(round(statistics.median(float(r["step_ms"]) - float(r["exchange_ms"]) for r in rows)))
EOF
)
            "$programs/changing_link" "${flags[@]}" --ranks $((2 * each)) --compute "$compute" \
                --links "0:trace:$work/trace.csv,$each" --csv "$work/predicted.csv" > /dev/null
            python3 - "$work" "$trace" $((2 * each)) "$config" <<'EOF' | tee -a "$csv"
import csv, datetime, os, sys
work, trace, ranks, config = sys.argv[1:]
read = lambda name: list(csv.DictReader(open(f"{work}/{name}.csv")))
measured, predicted = read("measured"), read("predicted")
seconds = [sum(float(row["step_ms"]) for row in rows) / 1e3 for rows in (measured, predicted)]
name = os.path.basename(trace).removesuffix(".csv")
print(",".join(map(str, [name, ranks, config, *(round(s, 2) for s in seconds), round(seconds[1] / seconds[0], 3), len(measured),
    measured[0]["machine"], os.cpu_count(), datetime.date.today(), "benches/traces_tcp.sh"])))
EOF
        done
    done
done
