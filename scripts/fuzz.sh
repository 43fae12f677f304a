#!/usr/bin/env bash
# Fuzzes every target of fuzz/, one after the other.
#
#     scripts/fuzz.sh              # 60 seconds each
#     scripts/fuzz.sh 600          # 600 seconds each
#     scripts/fuzz.sh 1000000x     # a million inputs each
#     scripts/fuzz.sh 60 kind_14   # only targets whose name contains kind_14
#     scripts/fuzz.sh --sum FILE...    # adds the tables of several runs up, target by target
#
# Needs a nightly compiler (rustup toolchain install nightly) and cargo-fuzz (cargo install --locked cargo-fuzz).
#
# A target starts from fuzz/seeds/TARGET, which `cargo run --example seeds` in fuzz/ writes, and keeps what it finds
# interesting in fuzz/corpus/TARGET, which is not committed. What the targets assert is in
# crates/briquette-testkit/src/{wire,links,vector_files}.rs and crates/briquette/src/checkpoint/claims.rs; `cargo test` asserts the same
# of random inputs. A trainer's config.toml has no target, as it takes Burn to build: examples/tests/all/options.rs tries random ones.
#
# After a crash the input lies in fuzz/artifacts/TARGET. To see it again:
#
#     cd fuzz && cargo +nightly fuzz run --sanitizer none TARGET artifacts/TARGET/crash-...
#
# Mend the fault, and write the input down as a test near the code: in tests/all/wire_format/damage.rs for a frame.
#
# There is no address sanitizer: nothing here is unsafe, and without it three times as many inputs are tried.
#
# Prints a table, as CSV, of what each target did; exits 1 when one of them crashed.
set -u

if [ "${1:-}" = --sum ]; then
    shift
    # By the names of the columns: older tables have fewer.
    awk -F, '
        FNR == 1 { for (i = 1; i <= NF; i++) column[$i] = i; next }
        $1 != "target" { t = $1; inputs[t] += $column["inputs"]; seconds[t] += $column["seconds"]
            crashes[t] += $column["crashes"]; new[t] += $column["new_inputs"]; runs[t]++
            if ($column["edges"] > edges[t]) edges[t] = $column["edges"]
            all += $column["inputs"]; time += $column["seconds"]; broken += $column["crashes"] }
        END { print "target,inputs,seconds,edges,new_inputs,crashes,runs"
            for (t in inputs) print t "," inputs[t] "," seconds[t] "," edges[t] "," new[t] "," crashes[t] "," runs[t] | "sort"
            close("sort"); printf "all,%d,%d,,,%d,\n", all, time, broken }' "$@"
    exit
fi
cd "$(dirname "$0")/../fuzz" || exit 1

amount=${1:-60} only=${2:-}
case $amount in
    *[!0-9x]* | '' | x*) echo "usage: scripts/fuzz.sh [SECONDS | INPUTSx] [PART OF A TARGET'S NAME]" >&2 && exit 2 ;;
    *x) limit="-runs=${amount%x}" ;;
    *) limit="-max_total_time=$amount" ;;
esac
if ! cargo +nightly --version >/dev/null 2>&1; then
    echo "no nightly compiler: rustup toolchain install nightly" >&2
    exit 2
fi
if ! cargo +nightly fuzz --version >/dev/null 2>&1; then
    echo "no cargo-fuzz: cargo install --locked cargo-fuzz" >&2
    exit 2
fi
cargo +nightly fuzz build --sanitizer none >&2 || exit 2

failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
revision=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
echo "target,inputs,seconds,edges,features,new_inputs,crashes,command,date,revision"
command="scripts/fuzz.sh $*"
for target in $(cargo +nightly fuzz list | grep -F -- "$only"); do
    mkdir -p "corpus/$target"
    before=$(find "corpus/$target" -type f | wc -l)
    start=$(date +%s)
    crashes=0
    # Inputs up to 4 KiB, 10 s and 1 GiB each: what takes more is a fault, too.
    if ! cargo +nightly fuzz run --sanitizer none "$target" "corpus/$target" "seeds/$target" -- \
        "$limit" -max_len=4096 -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 >"$log" 2>&1; then
        crashes=1 failed=1
        tail -40 "$log" >&2
    fi
    # The last line of progress: "#1234 DONE cov: 56 ft: 78 corp: ..."
    last=$(grep -E '^#[0-9]+.* cov: ' "$log" | tail -1)
    number() { sed -nE "s/.*$1:? *([0-9]+).*/\1/p" <<<"$2" | tail -1; }
    inputs=$(number 'stat::number_of_executed_units' "$(cat "$log")")
    new=$(($(find "corpus/$target" -type f | wc -l) - before))
    echo "$target,$inputs,$(($(date +%s) - start)),$(number cov "$last"),$(number ft "$last"),$new,$crashes,$command,$(date -u +%F),$revision"
done
exit "$failed"
