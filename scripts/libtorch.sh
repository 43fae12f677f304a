#!/usr/bin/env bash
# libtorch for machines that reach PyPI but not PyTorch's own downloads: takes the CPU libraries out of PyPI's wheel.
# Elsewhere building with `--features tch` fetches libtorch by itself, and this script is not needed.
#
#     eval "$(scripts/libtorch.sh DIR)"     480 MB in DIR/torch, 1.4 GB while unpacking; run again, it verifies what is there
#
# Standard output is the two environment variables that building and running want.
#
# The Linux wheel is linked against CUDA, but its CPU half works alone once two CUDA libraries that it names are stood in
# for: every function in them answers with an error, which libtorch takes for "no GPU here".
set -euo pipefail

version=2.9.0 # what Burn 0.22's `tch` asks for
fail() { echo "libtorch.sh: $*" >&2; exit 1; }

if [ $# -ne 1 ] || [[ "$1" == -* ]]; then
    sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
[ "$(uname -sm)" = "Linux x86_64" ] || fail "knows Linux on x86-64 only; elsewhere build with \`--features tch\` and let it fetch \
libtorch, or install torch==$version with pip and set LIBTORCH_USE_PYTORCH=1"
for tool in python3 cc nm readelf sha256sum; do
    command -v "$tool" > /dev/null || fail "needs $tool (Debian: apt-get install python3 python3-pip gcc binutils coreutils)"
done

mkdir -p "$1"
dir=$(cd "$1" && pwd)
torch=$dir/torch
lib=$torch/lib

# Whether everything that was taken is there, and as it was.
verified() {
    [ -f "$torch/SHA256SUMS" ] && [ "$(cat "$torch/build-version" 2> /dev/null)" = "$version" ] \
        && (cd "$torch" && sha256sum --quiet --check SHA256SUMS >&2)
}

# stub LIBRARY PREFIX: a stand-in for a CUDA library that libtorch_cpu.so names, with the symbols it wants from it. They are
# versioned, so the stand-in's must be too.
stub() {
    nm -D --undefined-only "$lib/libtorch_cpu.so" | sed -n "s/.* \($2[A-Za-z0-9_]*\)@.*/\1/p" | sort -u > "$work/symbols"
    [ -s "$work/symbols" ] || fail "libtorch_cpu.so asks $1 for nothing: not the wheel this script knows"
    while read -r symbol; do
        case "$symbol" in
            *String) echo "const char *$symbol(void) { return \"no CUDA here\"; }" ;;
            *) echo "int $symbol(void) { return 100; }" ;; # cudaErrorNoDevice
        esac
    done < "$work/symbols" > "$work/stub.c"
    echo "$1 { global: $(tr '\n' ';' < "$work/symbols") local: *; };" > "$work/stub.map"
    cc -shared -fPIC -O1 -o "$lib/$1" "$work/stub.c" -Wl,-soname,"$1" -Wl,--version-script="$work/stub.map"
}

if verified; then
    echo "libtorch $version is in $torch, as it was taken" >&2
else
    python3 -m pip --version > /dev/null 2>&1 || fail "needs pip (Debian: apt-get install python3-pip)"
    work=$(mktemp -d "$dir/unpacking.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    rm -rf "$torch"
    echo "fetching torch $version from PyPI (900 MB)" >&2
    # The hash pins what is taken, wherever the index is.
    echo "torch==$version --hash=sha256:51de31219c97c51cf4bf2be94d622e3deb5dcc526c6dc00e97c17eaec0fc1d67" > "$work/requirements"
    python3 -m pip download >&2 --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: \
        --python-version 3.11 --implementation cp --abi cp311 --platform manylinux_2_28_x86_64 \
        --dest "$work" --requirement "$work/requirements" || fail "PyPI gave no torch $version: see pip's message above"
    echo "unpacking its CPU libraries and headers" >&2
    python3 - "$work"/torch-*.whl "$work" << 'PYTHON'
import sys, zipfile
wanted = {"torch/lib/libtorch_cpu.so", "torch/lib/libc10.so", "torch/lib/libgomp.so.1"}
with zipfile.ZipFile(sys.argv[1]) as wheel:
    names = [n for n in wheel.namelist() if n in wanted or n.startswith("torch/include/")]
    missing = wanted - set(names)
    if missing:
        sys.exit(f"the wheel has no {', '.join(sorted(missing))}")
    wheel.extractall(sys.argv[2], names)
PYTHON
    lib=$work/torch/lib
    stub libcudart.so.12 cuda
    stub libcupti.so.12 cupti
    # The wheel's own libtorch.so asks for the CUDA half.
    echo "" | cc -shared -fPIC -x c - -o "$lib/libtorch.so" -Wl,-soname,libtorch.so -Wl,--no-as-needed -L"$lib" -l:libtorch_cpu.so \
        -Wl,-rpath,'$ORIGIN' -Wl,--allow-shlib-undefined
    known=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p)
    needed=$(readelf -d "$lib/libtorch_cpu.so" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
    for name in $needed; do
        [ -e "$lib/$name" ] || grep -qF "$name " <<< "$known" || fail "libtorch_cpu.so needs $name, which neither the wheel nor this machine has"
    done
    printf '%s' "$version" > "$work/torch/build-version"
    (cd "$work/torch" && find build-version lib include -type f -print0 | sort -z | xargs -0 sha256sum > SHA256SUMS)
    mv "$work/torch" "$torch"
    verified || fail "what was unpacked to $torch does not verify: remove it and run this again"
    echo "libtorch $version is in $torch ($(du -sm "$torch" | cut -f1) MB)" >&2
fi
echo "build and run with these two, or \`eval\` this script's output:" >&2
printf 'export LIBTORCH=%q\n' "$torch"
printf 'export LD_LIBRARY_PATH=%q"${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"\n' "$torch/lib"
