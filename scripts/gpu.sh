#!/usr/bin/env bash
# Tests and measures Briquette on a GPU, and packs it for a machine that has a driver and nothing else.
#
#     scripts/gpu.sh                    builds, then tests and measures here; results in gpu-results
#     scripts/gpu.sh pack [FILE]        builds a package instead (briquette-gpu.tar.xz)
#     scripts/gpu.sh measure [OUT]      tests and measures with the programs of an unpacked package
#
# On the other machine:  tar -xf briquette-gpu.tar.xz && briquette-gpu/gpu.sh measure
#
# BACKEND is cuda (default), vulkan or wgpu, and PROFILE is that of Cargo (release). DATA is a folder with CIFAR-10, for the accuracy row.
# SECONDS_LEFT (1500) bounds the whole measurement: the suite, kernels next to a copy on the device, steps next to plain Burn, then an
# accuracy run with the rest. VALUES, REPEATS, MODELS, BATCH, STEPS and EPOCHS change the size of each. Where there is no GPU, SOFTWARE=1
# measures a software adapter, which shows that the script works and nothing about speed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
backend=${BACKEND:-cuda}
profile=${PROFILE:-release}
most_megabytes=60

# libraries PROGRAM...: shared libraries that a machine with a driver may lack: LLVM and what it needs.
libraries() {
    ldd "$@" | awk '$1 ~ /^lib(LLVM|z3|edit|ffi|xml2|zstd|z|tinfo|bsd|md|icu|stdc\+\+|lzma)/ && $3 ~ /^\// { print $3 }' | sort -u
}

# stand_in USER LIBRARY OUT: a library in place of LIBRARY, with the symbols that USER needs of it. Each of them ends the process.
stand_in() {
    local soname work
    soname=$(basename "$2")
    work=$(mktemp -d)
    nm -D --undefined-only "$1" | awk '{ print $NF }' | sort -u > "$work/needed"
    # NAME, its kind (data or code), and its version if there is one.
    nm -D --defined-only "$2" | awk '$2 ~ /^[TWBDRV]$/ { print $3, ($2 ~ /[TW]/ ? "code" : "data") }' | sed 's/@@/@/' | sort -u > "$work/defined"
    awk 'NR == FNR { kind[$1] = $2; next } $1 in kind { split($1, part, "@"); print part[1], kind[$1], part[2] }' "$work/defined" "$work/needed" > "$work/symbols"
    awk 'BEGIN { print "#include <stdlib.h>" }
        $2 == "code" { print "void " $1 "(void) { abort(); }" }
        $2 == "data" { print "void *" $1 ";" }' "$work/symbols" > "$work/code.c"
    awk '$3 { names[$3] = names[$3] " " $1 ";" } END { if (!length(names)) print "{ global: *; };"; for (version in names) print version " { global:" names[version] " };" }' "$work/symbols" > "$work/versions"
    cc -shared -fPIC -o "$3/$soname" -Wl,-soname,"$soname" -Wl,--version-script="$work/versions" "$work/code.c"
    rm -rf "$work"
}

# pack FOLDER: builds the programs and lays them there with the libraries they need.
pack() {
    cd "$here/.."
    local target=${CARGO_TARGET_DIR:-target} out=$1
    if [ "$backend" = cuda ]; then
        bash scripts/llvm.sh
    fi
    # The whole workspace is named so that all of them share one build of Burn.
    local features=briquette-benches/$backend,briquette-device/$backend suite
    cargo build --profile "$profile" --workspace --locked --features "$features" --bin backends --bin cifar --example measure
    suite=$(cargo test --profile "$profile" --workspace --locked --features "$features" --test backends --no-run --message-format json \
        | sed -n 's/.*"executable":"\([^"]*backends-[^"]*\)".*/\1/p' | tail -1)
    [ -n "$suite" ] || { echo "gpu.sh: the suite of the backends was not built" >&2; exit 1; }
    mkdir -p "$out/programs"
    local built=$target/${profile/#dev/debug}
    cp "$built/backends" "$built/cifar" "$built/examples/measure" "$out/programs/"
    cp "$suite" "$out/programs/suite"
    strip "$out/programs/"*
    # LLVM is linked to a solver and a reader of XML, which bring 16 MB and which no translation of a kernel calls.
    local llvm library
    llvm=$(libraries "$out/programs/"* | grep libLLVM || true)
    for library in $(libraries "$out/programs/"*); do
        case $(basename "$library") in
            libz3.so* | libxml2.so*) [ -z "$llvm" ] || stand_in "$llvm" "$library" "$out/programs" ;;
            libicu* | liblzma*) ;;
            *) cp -L "$library" "$out/programs/" ;;
        esac
    done
    cp scripts/gpu.sh benches/pytorch_kernels.py "$out/"
    git rev-parse HEAD > "$out/revision" 2> /dev/null || echo unknown > "$out/revision"
}

# step NAME SECONDS COMMAND...: runs it within its time and the time left; remembers a failure and goes on.
failed=()
step() {
    local name=$1 most=$2 left=$((limit - SECONDS))
    shift 2
    if [ "$left" -lt 20 ]; then
        echo "== $name: not measured, no time left" | tee -a "$out/log"
        return
    fi
    [ "$most" -lt "$left" ] || most=$left
    echo "== $name ($SECONDS s)" | tee -a "$out/log"
    local status=0
    timeout --kill-after=10 "$most" "$@" >> "$out/log" 2>&1 || status=$?
    case $status in
        0) ;;
        124 | 137) echo "$name: ended after $most s; what it had measured is kept" | tee -a "$out/log" ;;
        *) echo "$name: failed (exit status $status); see $out/log" | tee -a "$out/log"; failed+=("$name") ;;
    esac
}

# csv NAME COMMAND...: its output as a CSV that names command, machine and date.
csv() {
    local name=$1
    shift
    {
        echo "# ${*##*/programs/}; $machine; $(date -u +%F); revision $(cat "$folder/revision")"
        "$@"
    } > "$out/$name.csv"
}
# labelled FILE COMMAND...: puts the same line above a CSV that a program has written.
labelled() {
    local file=$1
    shift
    [ ! -s "$out/$file" ] || sed -i "1i # ${*##*/programs/}; $machine; $(date -u +%F); revision $(cat "$folder/revision")" "$out/$file"
}

measure() {
    folder=$1 out=$2
    local programs=$folder/programs gpu=--gpu
    [ -x "$programs/suite" ] || { echo "gpu.sh: no programs in $folder: unpack the package there, or run scripts/gpu.sh in a clone" >&2; exit 2; }
    mkdir -p "$out"
    : > "$out/log"
    limit=$((SECONDS + ${SECONDS_LEFT:-1500}))
    # A driver's own libraries come first.
    export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$programs
    machine="$(nproc) cores"
    if command -v nvidia-smi > /dev/null; then
        machine="$(nvidia-smi --id=0 --query-gpu=name,driver_version,memory.total --format=csv,noheader), $machine"
    fi
    if [ "${SOFTWARE:-0}" = 1 ]; then
        gpu=
        machine="software adapter, $machine"
    fi
    export -f csv
    export folder out machine
    echo "$machine" | tee -a "$out/log"

    step "the suite on $backend" 400 env BURN_DEVICE=flex "$programs/suite" --test-threads "${THREADS:-1}" "$backend::" this_build_says
    step "kernels and a copy on the device" 240 bash -c 'csv kernels "$@"' _ "$programs/measure" "${VALUES:-25557032}" "${REPEATS:-20}"
    if command -v python3 > /dev/null && python3 -c 'import torch; assert torch.cuda.is_available()' 2> /dev/null; then
        step "the same operations in PyTorch" 120 bash -c 'csv pytorch "$@"' _ \
            python3 "$folder/pytorch_kernels.py" "${VALUES:-25557032}" "${REPEATS:-20}"
    else
        echo "not measured: no PyTorch with CUDA here" | tee -a "$out/log"
    fi
    # shellcheck disable=SC2206 # one word or none
    local steps=("$programs/backends" $gpu --backend "$backend" --model "${MODELS:-resnet18,bilstm}" --batch "${BATCH:-128}"
        --steps "${STEPS:-30}" --ranks 4 --note "$machine" --csv "$out/steps.csv")
    step "steps: plain Burn and wrapped ranks" 600 "${steps[@]}"
    labelled steps.csv "${steps[@]}"
    if [ -n "${DATA:-}" ]; then
        # Two ranks on one GPU: top-k with momentum correction, as the default table has it.
        for exchange in dense gather:topk:100x; do
            local feedback=()
            [ "$exchange" = dense ] || feedback=(--momentum-correction on)
            step "accuracy: $exchange" 600 "$programs/cifar" --data "$DATA" --backend "$backend" --model "${MODEL:-resnet18}" --ranks 2 \
                --batch "${BATCH:-128}" --epochs "${EPOCHS:-30}" --lr 0.1 --reducer "$exchange" "${feedback[@]}" \
                --plain --overwrite --out "$out/cifar-${exchange%%:*}"
        done
    else
        echo "not measured: no accuracy row without DATA" | tee -a "$out/log"
    fi
    if [ "${#failed[@]}" -gt 0 ]; then
        echo "failed: ${failed[*]}" | tee -a "$out/log"
        exit 1
    fi
    echo "results: $out" | tee -a "$out/log"
}

case ${1:-} in
    "")
        work=$(mktemp -d)
        trap 'rm -rf "$work"' EXIT
        pack "$work/briquette-gpu"
        measure "$work/briquette-gpu" "$PWD/gpu-results"
        ;;
    pack)
        file=$(realpath -m "${2:-briquette-gpu.tar.xz}")
        work=$(mktemp -d)
        trap 'rm -rf "$work"' EXIT
        pack "$work/briquette-gpu"
        # The programs share code, which a dictionary longer than a program finds.
        tar -C "$work" -cf - briquette-gpu | xz -T1 --lzma2=preset=6,dict=256MiB > "$file"
        megabytes=$(($(stat -c %s "$file") / 1000000))
        echo "$file: $megabytes MB"
        [ "$megabytes" -le "$most_megabytes" ] || { echo "gpu.sh: more than $most_megabytes MB" >&2; exit 1; }
        ;;
    measure) measure "$here" "$(realpath -m "${2:-gpu-results}")" ;;
    *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0"; [ "$1" = --help ] || exit 2 ;;
esac
