#!/usr/bin/env bash
# Mutation test: makes one meaningful mistake at a time in each algorithm of core and of the zoo (scripts/mutants.tsv), and fails unless a
# test notices. All mutants are compiled into one copy of the sources, each behind a switch, so that the whole table needs one build.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
table=$root/scripts/mutants.tsv

usage() {
    cat <<EOF
usage: scripts/mutants.sh [--list] [--check] [--csv FILE] [--limit SECONDS] [FILTER]

Applies each mutant of scripts/mutants.tsv and runs the tests that the table names for it. Prints killed or survived. Fails where a
mutant survives, where a text is not found exactly once any more, and where a test fails without a mutant.

  FILTER           only the rows that contain this text, such as slowmo or reduce/
  --list           print the rows and stop
  --check          only check that every text is found exactly once
  --csv FILE       write the outcomes there, with command, revision, machine and date; rows that it already has as killed, with the same
                   text, replacement and tests, are kept and not tried again
  --limit SECONDS  of one test run (120); a run that takes longer counts as killed

The table has five columns, separated by tabs: algorithm, file in crates/, exact text of one line that is no comment, replacement, tests.
The text is an expression, or a statement that ends with a semicolon. Tests are lib:FILTER for unit tests, or NAME:FILTER for tests/NAME,
separated by spaces; all of a FILTER's tests run. They are tests of the file's crate, unless another is named: briquette-core/all:FILTER.

The copy is in mutants/ of CARGO_TARGET_DIR (target/), where dependencies are shared with other builds.
EOF
}

only= csv= limit=120 mode=run command="scripts/mutants.sh $*"
while [ $# -gt 0 ]; do
    case $1 in
        --help | -h) usage; exit ;;
        --list) mode=list ;;
        --check) mode=check ;;
        --csv) csv=$(realpath -m -- "$2"); shift ;;
        --limit) limit=$2; shift ;;
        -*) usage >&2; exit 2 ;;
        *) only=$1 ;;
    esac
    shift
done

target=${CARGO_TARGET_DIR:-$root/target}
work=$target/mutants
copy=$work/sources

rows=$(grep -vE '^(#|$)' "$table" | awk '{ print NR "\t" $0 }')
[ -z "$only" ] || rows=$(grep -F -- "$only" <<<"$rows" || true)
[ -n "$rows" ] || { echo "no row of $table contains $only" >&2; exit 2; }
if [ $mode = list ]; then
    echo "$rows"
    exit
fi

# count FILE TEXT: how often the text occurs in lines that are no comments.
count() {
    TEXT=$2 awk 'BEGIN { text = ENVIRON["TEXT"] } /^ *\/\// { next }
        { line = $0; while ((at = index(line, text)) > 0) { found++; line = substr(line, at + length(text)) } }
        END { print found + 0 }' "$1"
}

missing=0
while IFS=$'\t' read -r number algorithm file text _; do
    found=0
    [ ! -f "$root/crates/$file" ] || found=$(count "$root/crates/$file" "$text")
    [ "$found" = 1 ] && continue
    echo "mutant $number ($algorithm): $file has this text $found times, not once: $text" >&2
    missing=1
done <<<"$rows"
[ $missing = 0 ] || exit 1
if [ $mode = check ]; then
    echo "$(wc -l <<<"$rows") mutants: every text is found once"
    exit
fi

# The sources, as git knows them, with what is not committed; files that are the same keep their times, so that cargo knows them.
mkdir -p "$copy" "$work/next"
rm -rf "$work/next"
mkdir "$work/next"
cd "$root"
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' name; do
    [ -f "$name" ] && printf '%s\0' "$name"
done | xargs -0 cp --parents -pt "$work/next"

# Each mutant behind a switch of core: (if crate::mutant(7) { replacement } else { text }).
cd "$work/next"
while IFS=$'\t' read -r number algorithm file text replacement tests; do
    core=::briquette_core
    [ "${file%%/*}" != briquette-core ] || core=crate
    SWITCH="$core::mutant($number)" TEXT=$text REPLACEMENT=$replacement awk '
        BEGIN { text = ENVIRON["TEXT"]
            both = "if " ENVIRON["SWITCH"] " { " ENVIRON["REPLACEMENT"] " } else { " text " }"
            if (text !~ /;$/) both = "(" both ")" }
        { at = /^ *\/\// || done ? 0 : index($0, text)
            if (at > 0) { done = 1; print substr($0, 1, at - 1) both substr($0, at + length(text)) } else print }
    ' "crates/$file" >"$work/changed"
    mv "$work/changed" "crates/$file"
done <<<"$rows"
cat >>crates/briquette-core/src/lib.rs <<'EOF'

/// Returns whether this mutant is the one that is tried.
#[doc(hidden)]
pub fn mutant(number: u32) -> bool {
    static TRIED: std::sync::OnceLock<Option<u32>> = std::sync::OnceLock::new();
    *TRIED.get_or_init(|| std::env::var("BRIQUETTE_MUTANT").ok()?.parse().ok()) == Some(number)
}
EOF
# Only what differs is written.
rm -rf "$work/old"
find . -type f -printf '%P\0' | while IFS= read -r -d '' name; do
    cmp -s "$name" "$copy/$name" || { mkdir -p "$(dirname "$copy/$name")"; cp "$name" "$copy/$name"; }
done
(cd "$copy" && find . -type f -printf '%P\0') | while IFS= read -r -d '' name; do
    [ -e "$name" ] || rm -f "$copy/$name"
done
cd "$copy"

# of FILE TESTS: the tests, each with its crate.
of() {
    local test
    for test in $2; do
        case ${test%%:*} in
            */*) echo "$test" ;;
            *) echo "${1%%/*}/$test" ;;
        esac
    done
}

targets=$(while IFS=$'\t' read -r _ _ file _ _ tests; do of "$file" "$tests"; done <<<"$rows" | sed 's/:.*//' | sort -u)
arguments=()
for name in $(sed 's/.*\///' <<<"$targets" | sort -u); do
    [ "$name" = lib ] && arguments+=(--lib) || arguments+=(--test "$name")
done
for name in $(sed 's/\/.*//' <<<"$targets" | sort -u); do
    arguments+=(-p "$name")
done
echo "building $(wc -l <<<"$rows") mutants into one copy, for the tests $(tr '\n' ' ' <<<"$targets")"
built=$work/built.json
# Most of the time is the build: without optimization it takes a third.
CARGO_PROFILE_DEV_OPT_LEVEL=${CARGO_PROFILE_DEV_OPT_LEVEL:-0} CARGO_TARGET_DIR=$target cargo test --locked --no-run \
    --message-format json "${arguments[@]}" >"$built"

# executable CRATE NAME: what cargo built for a target.
executable() {
    local kind=test name=$2
    [ "$2" = lib ] && kind=lib && name=${1//-/_}
    grep -F '"profile":{' "$built" | grep -F "/crates/$1#" | grep -F "\"kind\":[\"$kind\"]" | grep -F "\"name\":\"$name\"" |
        grep -F '"test":true' | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -1
}

# try NUMBER TESTS: 0 where all pass within the limit. Each test names its crate.
try() {
    local test log=$work/log
    : >"$log"
    for test in $2; do
        local crate=${test%%/*} program
        program=${test#*/}
        program=$(executable "$crate" "${program%%:*}")
        [ -n "$program" ] || { echo "cargo built no tests ${test%%:*}" >&2; exit 2; }
        (cd "crates/$crate" && BRIQUETTE_MUTANT=$1 timeout "$limit" "$program" "${test#*:}" >>"$log" 2>&1) || return 1
    done
}

quoted() { printf '"%s"' "${1//\"/\"\"}"; }
# fields ALGORITHM FILE TEXT REPLACEMENT TESTS: the first columns of a row of the CSV.
fields() {
    for field in "$@"; do
        quoted "$field"
        printf ','
    done
}
# known ALGORITHM FILE TEXT REPLACEMENT TESTS: the row of an earlier run in which the mutant was killed.
known() { [ -n "$csv" ] && [ -f "$csv" ] && grep -F -m 1 -- "$(fields "$@")\"killed\"" "$csv"; }

todo=
while IFS=$'\t' read -r number algorithm file text replacement tests; do
    known "$algorithm" "$file" "$text" "$replacement" "$tests" >/dev/null || todo+="$(of "$file" "$tests") "
done <<<"$rows"

# Tests that fail without a mutant, or are none, would prove nothing.
sound=1
for tests in $(tr -s ' ' '\n' <<<"$todo" | sort -u); do
    if ! try 0 "$tests"; then
        echo "tests $tests fail without a mutant:" >&2
        tail -20 "$work/log" >&2
        sound=0
    elif grep -qF 'running 0 tests' "$work/log"; then
        echo "tests $tests: there is none" >&2
        sound=0
    fi
done
[ $sound = 1 ] || exit 1

revision=$(git -C "$root" rev-parse --short=12 HEAD)
[ -z "$(git -C "$root" status --porcelain)" ] || revision=$revision+
machine=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo 2>/dev/null | head -1)
[ -z "$csv" ] || echo 'algorithm,file,text,replacement,tests,outcome,noticed_by,revision,machine,date,command' >"$csv.part"
survived=0 done=0 all=$(wc -l <<<"$rows")
while IFS=$'\t' read -r number algorithm file text replacement tests; do
    done=$((done + 1)) outcome=killed by=
    if row=$(known "$algorithm" "$file" "$text" "$replacement" "$tests"); then
        echo "$row" >>"$csv.part"
        continue
    fi
    if try "$number" "$(of "$file" "$tests")"; then
        outcome=SURVIVED survived=$((survived + 1))
    else
        by=$(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$work/log" | head -1)
        by=${by:-the time limit, or an abort}
    fi
    printf '%3d/%d %-9s %-24s %s\n' "$done" "$all" "$outcome" "$algorithm" "$text  ->  $replacement"
    [ -z "$csv" ] || {
        fields "$algorithm" "$file" "$text" "$replacement" "$tests" "$outcome" "$by" "$revision" "${machine:-unknown}" "$(date -u +%F)"
        quoted "$command"
        echo
    } >>"$csv.part"
done <<<"$rows"
[ -z "$csv" ] || mv "$csv.part" "$csv"
echo "$((all - survived)) of $all mutants killed"
[ "$survived" = 0 ]
