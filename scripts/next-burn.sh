#!/usr/bin/env bash
# Checks that `briquette` (features `flex` and `train`) compiles with the next Burn, in a copy of the sources without the backends
# that Burn 0.23 drops. `--cfg burn_0_23` selects what differs (crates/briquette/src/data_parallel/progress.rs). Tests and their
# helpers are not compiled. A failure lists what has to change; it does not block other work.
#
#     scripts/next-burn.sh [VERSION]
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:-0.23.0-pre.1}

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z Cargo.toml crates/briquette crates/briquette-core crates/briquette-derive crates/briquette-device crates/briquette-sim crates/briquette-tcp crates/briquette-zoo README.md | xargs -0 cp -P --parents -t "$copy"
cd "$copy"
sed -i -E "s/^(burn(-pack)? = \{ version = )\"[^\"]*\"/\1\"=$version\"/; s/^(default-)?members = .*/\1members = [\"crates\/briquette-core\", \"crates\/briquette-derive\", \"crates\/briquette-device\", \"crates\/briquette-sim\", \"crates\/briquette-tcp\", \"crates\/briquette-zoo\", \"crates\/briquette\"]/; /^exclude = /d" Cargo.toml
sed -i -E '/^(ndarray|tch) = /d; /^## .*Deprecated by Burn\.$/d' crates/briquette/Cargo.toml
# The helpers of tests are not in the copy.
sed -i -E '/^\[dev-dependencies\]/,/^\[/{/^\[dev-dependencies\]/d;/^[a-z]/d}' crates/briquette{,-core,-device,-sim,-tcp,-zoo}/Cargo.toml
# Only macros and build scripts are run: optimizing them takes longer than it saves.
RUSTFLAGS="${RUSTFLAGS:-} --allow unexpected_cfgs --cfg burn_0_23" cargo check --quiet --config 'profile.dev.package."*".opt-level=0' -p briquette --no-default-features --features flex,train
echo "briquette builds with Burn $version"
