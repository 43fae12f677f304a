#!/usr/bin/env bash
# Runs ranks under PyTorch's own torchrun in each of its modes: --standalone, a given master (static), c10d rendezvous, two agents, several
# jobs at once, restarts.
#
#     scripts/torchrun.sh [DIR]        DIR is where torchrun is kept (600 MB; default: a folder in the user's cache)
#     scripts/torchrun.sh --have [DIR] exit code 0 if it is there already, without fetching anything
#
# torchrun is of the wheel torch==2.9.0 of PyPI, which is fetched once (900 MB). It is linked against CUDA, which a launcher does not
# need: libraries of CUDA that are missing are stood in for, as in scripts/libtorch.sh. TORCHRUN names another one, as in
# TORCHRUN='python3 -m torch.distributed.run'. Exit code 77 where there is none and none can be had: why is said.
#
# The program is an example of briquette-tcp, which this builds, or what MEET names; with TRAINER, that one is run and restarted too.
set -euo pipefail
cd "$(dirname "$0")/.."
version=2.9.0
have=
[ "${1:-}" != --have ] || { have=1; shift; }
dir=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/briquette/torchrun}
skip() { echo "skipped: $*"; exit 77; }
# Is removed at the end, whatever it is.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fetch() {
    [ "$(uname -sm)" = "Linux x86_64" ] || skip "the wheel of torchrun is for Linux on x86-64 (set TORCHRUN to one that is installed)"
    for tool in python3 cc nm ldconfig; do
        PATH=$PATH:/sbin:/usr/sbin command -v $tool > /dev/null || skip "$tool is missing, which makes torchrun work without CUDA"
    done
    echo 'int none;' > "$work/trial.c"
    cc -shared -fPIC -o "$work/trial.so" "$work/trial.c" -lstdc++ 2> "$work/error" \
        || skip "cc cannot link libstdc++, which makes torchrun work without CUDA (Debian: apt-get install g++): $(tail -n 1 "$work/error")"
    python3 -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || skip "the wheel of torchrun is for Python 3.11, and python3 is another"
    local left
    mkdir -p "$dir"
    left=$(df -Pm "$dir" | awk 'NR == 2 { print $4 }')
    [ "$left" -ge 4000 ] || skip "torchrun takes 4 GB while it is unpacked, and $dir has $left MB"
    rm -rf "$dir/new" && mkdir "$dir/new"
    echo "fetching torch $version from PyPI (900 MB) for its torchrun"
    echo "torch==$version --hash=sha256:51de31219c97c51cf4bf2be94d622e3deb5dcc526c6dc00e97c17eaec0fc1d67" > "$work/requirements"
    local pip=(python3 -m pip --quiet --disable-pip-version-check)
    timeout "${FETCH_SECONDS:-600}" "${pip[@]}" download --no-deps --require-hashes --only-binary=:all: --dest "$work" \
        --requirement "$work/requirements" || skip "PyPI gave no torch $version: see pip's message above"
    # Other packages that it imports, where python3 does not have them.
    local missing
    missing=$(python3 - << 'PYTHON'
import importlib.util
wanted = {"typing_extensions": "typing-extensions==4.15.0", "sympy": "sympy==1.14.0", "networkx": "networkx==3.6.1", "jinja2": "jinja2==3.1.6"}
print(" ".join(package for module, package in wanted.items() if importlib.util.find_spec(module) is None))
PYTHON
    )
    # shellcheck disable=SC2086 # names of packages
    [ -z "$missing" ] || timeout 120 "${pip[@]}" install --only-binary=:all: --target "$dir/new" $missing \
        || skip "PyPI gave not all of $missing, which torchrun imports: see pip's message above"
    python3 - "$work"/torch-*.whl "$dir/new" << 'PYTHON'
import sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
big = ("torch/lib/libtorch_cuda", "torch/include/", "torch/bin/protoc", "torch/lib/libtorch_nvshmem")
wheel.extractall(sys.argv[2], [name for name in wheel.namelist() if not name.startswith(big)])
PYTHON
    PATH=$PATH:/sbin:/usr/sbin python3 - "$dir/new/torch/lib" << 'PYTHON'
# Stands in for the libraries of CUDA: functions that return an error, or an empty object; data of zeros.
import collections, re, subprocess, sys
lib = sys.argv[1]

def symbols(path, which):
    out = subprocess.run(["nm", "-D", which, path], capture_output=True, text=True, check=True).stdout
    return [line.split()[-2:] for line in out.splitlines()]

known = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
def system(name):
    return re.search(r"^\s*" + re.escape(name) + r" .*=> (\S+)", known, re.M).group(1)

ours = [f"{lib}/{name}.so" for name in ("libtorch_python", "libtorch_cpu", "libc10", "libc10_cuda", "libshm")]
theirs = [system(name) for name in ("libstdc++.so.6", "libgcc_s.so.1", "libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2")]
there = {symbol.split("@")[0] for path in [*ours, *theirs, f"{lib}/libgomp.so.1"] for _, symbol in symbols(path, "--defined-only")}
needed = collections.defaultdict(set)
for path in ours:
    for kind, symbol in symbols(path, "--undefined-only"):
        name, _, version = symbol.partition("@")
        if kind not in "wv" and name not in there and not name.startswith(("Py", "_Py")):
            needed[version.lstrip("@")].add(name)

def stand_in(library, names, version=None):
    lines = []
    for name in sorted(names):
        if name.startswith("_ZTI"):
            lines += [f".data\n.globl {name}\n.type {name},@object\n.align 8\n{name}: .quad _ZTVN10__cxxabiv117__class_type_infoE+16",
                      f".quad L_{name}\n.zero 64\n.size {name},80\n.section .rodata\nL_{name}: .asciz \"{name[4:]}\""]
        elif name.startswith(("_ZTV", "_ZTS", "_ZTT")):
            lines.append(f".data\n.globl {name}\n.type {name},@object\n.align 8\n{name}: .zero 2048\n.size {name},2048")
        else:
            value = "lea L_empty(%rip),%rax" if name.startswith("_Z") else "mov $100,%eax"
            lines.append(f".text\n.globl {name}\n.type {name},@function\n{name}: {value}\nret\n.size {name},.-{name}")
    lines.append(".bss\n.align 16\nL_empty: .zero 4096\n.section .note.GNU-stack,\"\",@progbits\n")
    source = f"{lib}/{library}.s"
    with open(source, "w") as file:
        file.write("\n".join(lines))
    command = ["cc", "-shared", "-o", f"{lib}/{library}", source, f"-Wl,-soname,{library}", "-lstdc++", "-Wl,--allow-shlib-undefined"]
    if version:
        with open(f"{source}.map", "w") as file:
            file.write(version + " { global: " + "; ".join(sorted(names)) + "; local: *; };")
        command.append(f"-Wl,--version-script={source}.map")
    subprocess.run(command, check=True)

stand_in("libtorch_cuda.so", needed.pop("", set()))
for library in ("libcudart.so.12", "libcupti.so.12", "libcudnn.so.9", "libcusparseLt.so.0", "libcufile.so.0"):
    version = next((version for version in needed if version.split(".")[0] == library.split(".")[0]), None)
    stand_in(library, needed.pop(version, set()), version)
PYTHON
    rm -rf "$dir/site" && mv "$dir/new" "$dir/site"
}

is_ours=
if [ -z "${TORCHRUN:-}" ]; then
    is_ours=1
    if [ ! -d "$dir/site" ]; then
        [ -z "$have" ] || { echo "torchrun is not in $dir"; exit 1; }
        fetch
    fi
    TORCHRUN="env PYTHONPATH=$dir/site PYTHONWARNINGS=ignore python3 -m torch.distributed.run"
fi
[ -z "$have" ] || exit 0
# shellcheck disable=SC2086 # a command and its options
timeout 120 $TORCHRUN --help > "$work/help" 2>&1 || {
    # The fetched copy does not run.
    [ -z "$is_ours" ] || rm -rf "$dir/site"
    skip "torchrun does not run here: $(tail -n 1 "$work/help")"
}
if [ -z "${MEET:-}" ]; then
    cargo build --quiet --locked -p briquette-tcp --example meet
    MEET=${CARGO_TARGET_DIR:-target}/debug/examples/meet
fi
MEET=$(realpath "$MEET")
fail() { echo "torchrun.sh: $*" >&2; tail -n 30 "$work"/*.log >&2; exit 1; }
# Below those that the system hands out by itself, which a connection of another program may have in a moment.
port() { echo $((28000 + RANDOM % 4000)); }
# Below the 100 s of torchrun: ranks that do not meet fail with a reason.
export BRIQUETTE_JOIN_DEADLINE=40s
# torchrun NAME ARGUMENT...: its output is in $work/NAME.log.
torchrun() {
    # shellcheck disable=SC2086
    timeout --kill-after=5 100 $TORCHRUN "${@:2}" > "$work/$1.log" 2>&1
}
# met NAME RANKS: every rank of the job says that it met its own kind.
met() {
    local job=$1 ranks=$2
    [ "$(cat "$work/$job"*.log | grep -c "$job: rank . of $ranks,")" -ge "$ranks" ] || fail "$job: not every rank of $ranks says whom it met"
    ! grep -q 'met ranks of another job' "$work/$job"*.log || fail "$job met ranks of another job"
}

torchrun alone --standalone --nproc-per-node 3 --no-python "$MEET" alone || fail "--standalone"
met alone 3
echo "--standalone: 3 ranks meet"

# Two agents on one machine stand for two machines, each with its own part of the ranks.
agents() {
    local job=$1 first=0 second=0 one
    shift
    torchrun "$job-0" --nnodes 2 --nproc-per-node 2 "$@" --node-rank 0 --no-python "$MEET" "$job" &
    one=$!
    torchrun "$job-1" --nnodes 2 --nproc-per-node 2 "$@" --node-rank 1 --no-python "$MEET" "$job" || second=$?
    wait $one || first=$?
    # The work of torch before it starts a rank is not under test.
    local agent code
    for agent in 0 1; do
        code=$first
        [ $agent -eq 0 ] || code=$second
        if [ "$code" -eq 124 ] && ! grep -q "^$job: started" "$work/$job-$agent.log"; then
            echo "$job rendezvous: not finished: torchrun's agent $agent started no rank within 100 s"
            return
        fi
    done
    [ "$first$second" = 00 ] || fail "$job: the agents ended with $first and $second"
    met "$job" 4
    echo "$job rendezvous: 2 agents with 2 ranks each meet"
}
agents static --master-addr 127.0.0.1 --master-port "$(port)"
agents c10d --rdzv-backend c10d --rdzv-endpoint "127.0.0.1:$(port)" --rdzv-id "job-$$" --local-addr 127.0.0.1

pids=()
for job in one two three; do
    torchrun $job --standalone --nproc-per-node 2 --no-python "$MEET" $job &
    pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || fail "three jobs at once: one failed"; done
for job in one two three; do met $job 2; done
echo "three jobs at once: every rank met its own job"

torchrun again --standalone --max-restarts 2 --nproc-per-node 2 --no-python "$MEET" again --fail-until 2 || fail "restarts"
grep -q 'met again/2 again/2' "$work/again.log" || fail "restarts: the ranks do not know that this is the third start"
echo "restarts: the third start meets, and knows that it is the third"

if [ -n "${TRAINER:-}" ]; then
    trainer=$(realpath "$TRAINER")
    flags=(--dataset generated --train-limit 64 --test-limit 16 --model resnet8 --batch 8 --epochs 2 --schedule constant --plain)
    (cd "$work" && torchrun trainer --standalone --nproc-per-node 2 --no-python "$trainer" "${flags[@]}" --out run) || fail "the trainer"
    grep -qE '"final_test_accuracy": [0-9]' "$work/run/summary.json" || fail "the trainer: no accuracy in summary.json"
    echo "the trainer runs on 2 ranks"
fi
