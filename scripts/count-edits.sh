#!/usr/bin/env bash
# What a new algorithm costs: one new file and at most two edits of one line, all of them in core. Adds one of each family
# (scripts/dummies) to a copy of the sources, counts what git says has changed, and runs the laws, which must find them.
#
#   scripts/count-edits.sh [--counts]        --counts: builds nothing and runs no laws
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/briquette/target}/count-edits"
copy=$CARGO_TARGET_DIR/sources
core=crates/briquette-core/src

rm -rf "$copy"
mkdir -p "$copy"
cd "$root"
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
    [ -e "$file" ] && printf '%s\0' "$file"
done | xargs -0 cp --parents -P -pt "$copy"
cd "$copy"
git init -q
commit() { git -c user.name=count -c user.email=count@localhost commit -q "$@"; }
git add -A
commit -m "As it is"

# before FILE PATTERN LINE: LINE in front of the first line that matches.
before() {
    local at
    at=$(grep -nE -m 1 "$2" "$1" | cut -d: -f1) || { echo "$1 has no line like $2"; exit 1; }
    sed -i "${at}i\\$3" "$1"
}

# add FAMILY FOLDER TYPE LIST-FILE LIST: the file, its module, and the line of the list.
add() {
    local family=$1 folder=$core/$2 type=$3 list=$core/$4 head=$5
    cp "$root/scripts/dummies/$family.rs" "$folder/dummy_$family.rs"
    before "$folder/mod.rs" '^pub mod ' "pub mod dummy_$family;"
    # The end of the list: its first entry is the family's default.
    local at
    at=$(awk -v head="$head" 'index($0, head) { found = 1 } found && /^ *}$/ { print NR; exit }' "$list")
    [ -n "$at" ] || { echo "$list has no list $head"; exit 1; }
    sed -i "${at}i\\        $2::dummy_$family::$type," "$list"
    git add -A
    local new edited lines
    new=$(git diff --cached --diff-filter=A --name-only | wc -l)
    edited=$(git diff --cached --diff-filter=M --name-only | sort -u | wc -l)
    lines=$(git diff --cached --diff-filter=M --numstat | awk '{ lines += $1 + $2 } END { print lines + 0 }')
    printf '%-12s %s new file, %s lines in %s files\n' "$family" "$new" "$lines" "$edited"
    [ "$new" -le 1 ] && [ "$lines" -le 2 ] || { echo "$family: more than one file and two lines"; exit 1; }
    commit -m "Add a $family"
}

add compressor compress FirstHalf config/lists.rs 'fn compressors('
add reducer reduce OtherDense config/lists.rs 'fn reducers('
add feedback wrapper OtherError config/lists.rs 'fn feedbacks('
add controller control Twice config/lists.rs 'fn controllers('
add aggregator aggregate OtherMean config/lists.rs 'fn aggregators('
add strategy sync OtherEveryStep config/lists.rs 'fn strategies('
add policy server OtherAsync config/lists.rs 'fn servers('

[ "${1:-}" != --counts ] || exit 0
# Of each: a text, a table, help, a representative; then the laws.
cargo test --quiet -p briquette-core --lib -- config:: settings:: server::
cargo test --quiet -p briquette-core --test laws
