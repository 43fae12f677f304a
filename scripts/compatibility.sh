#!/usr/bin/env bash
# That the crates build with the oldest Rust they promise, and that their public API is compatible with what was published last
# (cargo-semver-checks). Says what is not here to check with.
set -euo pipefail
cd "$(dirname "$0")/.."
msrv=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
crates=(-p briquette-core -p briquette-sim -p briquette-zoo -p briquette-tcp -p briquette-device -p briquette -p briquette-cli)

if rustc --version | grep -q "^rustc $msrv\."; then
    echo "Rust $msrv: this toolchain is it, everything above was built with it"
elif rustup run "$msrv" rustc --version 2> /dev/null; then
    cargo "+$msrv" check --locked "${crates[@]}"
else
    echo "skipped: no Rust $msrv here (rustup toolchain install $msrv)"
fi

if ! cargo semver-checks --version 2> /dev/null; then
    echo "skipped: no cargo-semver-checks here (cargo install cargo-semver-checks)"
elif ! git describe --tags --match 'v*' > /dev/null 2>&1; then
    echo "skipped: no version was released yet to compare with"
else
    cargo semver-checks "${crates[@]}" --baseline-rev "$(git describe --tags --abbrev=0 --match 'v*')"
fi
