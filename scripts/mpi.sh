#!/usr/bin/env bash
# Installs what building crates/briquette-mpi takes: an MPI with its compiler wrapper, and libclang. Changes nothing
# where they are there already.
set -euo pipefail

# A wrapper `mpicc` without headers comes with Debian's openmpi-bin.
has_headers() { echo '#include <mpi.h>' | mpicc -E -x c - >/dev/null 2>&1; }
has_clang() { ldconfig -p 2>/dev/null | grep -q 'libclang[-.]' || compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null; }

if has_headers && command -v mpirun >/dev/null && { has_clang || [ -n "${LIBCLANG_PATH:-}" ]; }; then
    echo "MPI is there: $(mpirun --version 2>&1 | head -1)"
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    cat >&2 <<'TEXT'
This script knows Debian and Ubuntu only. Install:
  - an MPI with headers and `mpicc`: Fedora: openmpi-devel; Arch: openmpi; macOS: `brew install open-mpi`;
    a cluster: `module load openmpi` or the site's own (MPICH and its relatives work too)
  - libclang, which reads the headers: Fedora: clang-devel; Arch: clang; macOS: `brew install llvm`;
    elsewhere set LIBCLANG_PATH to the folder with libclang.so
TEXT
    exit 1
fi
sudo=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "run this as root: apt-get installs packages" >&2; exit 1; }
    sudo=(sudo)
fi
# A new machine knows no packages yet.
apt-cache show libopenmpi-dev openmpi-bin libclang-dev > /dev/null 2>&1 || "${sudo[@]}" apt-get update -qq
"${sudo[@]}" apt-get install -y --no-install-recommends libopenmpi-dev openmpi-bin libclang-dev
