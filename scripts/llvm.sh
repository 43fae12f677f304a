#!/usr/bin/env bash
# Lets CubeCL's runtimes that compile with LLVM (the features `cuda` and `cpu`) be built with Debian's LLVM 22. CubeCL 0.11 downloads an LLVM
# 23.1 of its own otherwise. Changes nothing where that one is installed.
#
#     scripts/llvm.sh && cargo test -p briquette-device --features cpu
#
# The build script of tracel-llvm-bundler is content with a folder that holds its mark, and llvm-sys asks only the folder's llvm-config. The one
# written here answers for Debian's LLVM, linked as a shared library. CubeCL uses no function of LLVM 23 that 22 lacks.
set -euo pipefail

root=${LLVM_ROOT:-/usr/lib/llvm-22}
folder=${XDG_DATA_HOME:-$HOME/.local/share}/tracel/tracel-llvm-23.1.0-4
mark=$folder/.tracel-llvm-installed

if [ -e "$mark" ] && [ ! -L "$folder/lib" ]; then
    echo "CubeCL's own LLVM is there: $folder"
    exit 0
fi
if [ ! -x "$root/bin/llvm-config" ]; then
    if ! command -v apt-get > /dev/null; then
        echo "install LLVM 22 with its headers, and set LLVM_ROOT to its folder: this script knows Debian and Ubuntu only" >&2
        exit 1
    fi
    sudo=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo > /dev/null || { echo "run this as root: apt-get installs packages" >&2; exit 1; }
        sudo=(sudo)
    fi
    # A new machine knows no packages yet.
    apt-cache show llvm-22-dev > /dev/null 2>&1 || "${sudo[@]}" apt-get update -qq
    "${sudo[@]}" apt-get install -y --no-install-recommends llvm-22-dev
fi

mkdir -p "$folder/bin"
ln -sfn "$root/include" "$folder/include"
ln -sfn "$root/lib" "$folder/lib"
flags="-I$root/include -D_GNU_SOURCE -D__STDC_CONSTANT_MACROS -D__STDC_FORMAT_MACROS -D__STDC_LIMIT_MACROS"
cat > "$folder/bin/llvm-config" << SCRIPT
#!/bin/sh
for argument; do
    case \$argument in
        --link-static) ;;
        --libs | --libnames) echo ;;
        --system-libs) echo -lLLVM-22 ;;
        --libdir) echo "$root/lib" ;;
        --includedir) echo "$root/include" ;;
        --version) exec "$root/bin/llvm-config" --version ;;
        --cflags) echo "$flags" ;;
        --cxxflags) echo "$flags -std=c++17 -fno-exceptions" ;;
        *) echo "llvm-config: \$argument is not answered here" >&2; exit 1 ;;
    esac
done
SCRIPT
chmod +x "$folder/bin/llvm-config"
touch "$mark"
echo "LLVM $("$root/bin/llvm-config" --version) of $root serves as $folder"
