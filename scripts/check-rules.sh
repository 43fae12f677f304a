#!/usr/bin/env bash
# What must not depend on what (docs/architecture.md), and what pages and tests say of each other. Exits 1 and says where a rule
# is broken.
set -u
cd "$(dirname "$0")/.."
failed=0

# forbid RULE PATTERN PATH...: no code line (comments aside) of PATH matches PATTERN.
forbid() {
    local rule=$1 pattern=$2
    shift 2
    local hits
    hits=$(grep -rnE "$pattern" "$@" --include='*.rs' | grep -vE "^[^:]+:[0-9]+:\s*//|^${except:-^}:" || true)
    if [ -n "$hits" ]; then
        printf 'broken: %s\n%s\n\n' "$rule" "$hits"
        failed=1
    fi
}

core=crates/briquette-core/src zoo=crates/briquette-zoo/src
forbid "briquette-core, briquette-sim and briquette-zoo know no framework, socket, clock or environment" \
    '\b(burn|tokio)::|std::net|time::Instant|SystemTime|env::var' "$core" crates/briquette-sim/src "$zoo"
# The catalogue is found without being passed: docs/adr/0054-catalogue.md.
except=$core/config/catalogue.rs forbid "briquette-core and briquette-zoo keep nothing process-wide" \
    'static mut|static .*(Mutex|RwLock|Atomic|OnceLock|LazyLock|RefCell)|thread_local!' "$core" "$zoo"
# Threads: only comm/local.rs, comm/background.rs and what is under them, the laws' worlds, and tests.
threads=$(grep -rlE '^[^/]*thread::(spawn|scope|Builder)' "$core" "$zoo" --include='*.rs' \
    | grep -vE '/(comm/local|comm/background|laws)(\.rs$|/)|/tests\.rs$' || true)
for file in $threads; do
    line=$(grep -nE '^[^/]*thread::(spawn|scope|Builder)' "$file" | head -1 | cut -d: -f1)
    tests=$(grep -n '#\[cfg(test)\]' "$file" | head -1 | cut -d: -f1)
    if [ -z "$tests" ] || [ "$line" -lt "$tests" ]; then
        echo "broken: threads outside comm/local.rs and comm/background.rs: $file:$line"
        failed=1
    fi
done
forbid "compress, aggregate and control do not communicate" \
    '(crate|briquette_core)::comm|Session' "$core"/{compress,aggregate,control} "$core"/seam/{compressor,aggregator,controller}.rs \
    "$zoo"/{aggregate,control}
forbid "a message does not know compressors" 'crate::compress' "$core/message.rs" "$core/message" "$core/wire.rs" "$core/wire"
forbid "only the core names algorithms: the glue holds none" \
    'impl.* (Compressor|Aggregator|Reducer|Controller|SyncStrategy) for' crates/briquette/src
# What a program calls to start may, and the derive, at compile time.
mapfile -t others < <(find crates/*/src datasets/src -name '*.rs' ! -path crates/briquette/src/pool.rs \
    ! -path crates/briquette-tcp/src/environment.rs ! -path crates/briquette-cli/src/allocator.rs \
    ! -path crates/briquette-testkit/src/alone.rs ! -path crates/briquette-derive/src/lib.rs)
forbid "libraries read no environment variables" 'env::var' "${others[@]}"
forbid "nothing here is unsafe" '\bunsafe (fn|impl|\{)' "$core" crates/briquette-{derive,device,sim}/src "$zoo" crates/briquette/src datasets/src examples/src

python3 scripts/floors.py || failed=1

# Results are found by name; the date is in the file, in its first line or in a column.
if dated=$(git ls-files benches/results | grep -E '/[0-9]{4}-|_[^/]*$|[A-Z][^/]*$'); then
    echo "broken: names of results have lower case, hyphens and no date: $dated"
    failed=1
fi
while read -r file; do
    if ! head -2 "$file" | grep -qE '[0-9]{4}-[0-9]{2}-[0-9]{2}|(^|,)date(,|$)'; then
        echo "broken: a result without a date: $file"
        failed=1
    fi
done < <(git ls-files 'benches/results/*.csv')

if ! tree=$(cargo tree -p briquette-core --edges normal --prefix none --locked); then
    echo "broken: cargo cannot say what briquette-core depends on"
    failed=1
elif grep -qE '^(burn|tokio)' <<<"$tree"; then
    echo "broken: briquette-core depends on a framework or runtime"
    failed=1
fi

# Threats: a row of the page has a test that names it, unless nothing holds; a test's threat has a row.
rows=$(sed -nE '/\*\*nothing\.\*\*/d; s/^\| ([SRLF][0-9]+) \|.*/\1/p' docs/threat-model.md | sort -u)
named=$(grep -rhoE --include='*.rs' '/// Threat [SRLF][0-9]+\.' crates datasets examples chaos | grep -oE '[SRLF][0-9]+' | sort -u)
if [ -z "$rows" ] || [ "$rows" != "$named" ]; then
    echo "broken: rows of docs/threat-model.md (<) and threats that tests name (>) differ:"
    diff <(echo "$rows") <(echo "$named") || true
    failed=1
fi
# What held: a row names a test that is there.
for test in $(sed -n '/<!-- what held -->/,/<!-- end of what held -->/p' docs/faults.md | sed -nE 's/.*`([^`]+)` \|$/\1/p'); do
    if ! grep -rqE --include='*.rs' "fn $test\(" crates datasets examples chaos; then
        echo "broken: docs/faults.md names the test $test, which is not there"
        failed=1
    fi
done
# Integration tests: a file that no other file declares as a module is never compiled, and each further binary says why it is one.
while IFS= read -r file; do
    folder=$(dirname "$file") name=$(basename "$file" .rs)
    [ "$name" = mod ] && name=$(basename "$folder") folder=$(dirname "$folder")
    if [ "$name" = main ] || [ "$(basename "$folder")" = tests ]; then
        case $file in
            */tests/all/main.rs | examples/custom/* | examples/ports/* | chaos/*) ;;
            *) grep -q '^//! Own binary' "$file" \
                || { echo "broken: $file is a test binary without a line that begins with \`Own binary\` and says why"; failed=1; } ;;
        esac
    elif ! grep -qsE "^(pub(\([a-z]+\))? )?mod $name;" "$folder/main.rs" "$folder/mod.rs" "$folder.rs"; then
        echo "broken: no file declares the tests in $file: add \`mod $name;\` to $folder/main.rs or mod.rs"
        failed=1
    fi
done < <(git ls-files --cached --others --exclude-standard -- '*/tests/*.rs' | grep -v '/src/' | xargs ls -d 2> /dev/null)
forbid "tests and programs do not include the test files of another crate: shared test code is in briquette-testkit" \
    '#\[path = "[^"]*/tests/' crates examples datasets chaos benches fuzz
# Titles name the thing: no doc comment's first line and no heading of a page begins with a question word.
question='(What|Who|Whom|Whose|How|Which|Where|Whether)'
titles=$(git ls-files '*.rs' | xargs awk -v question="^[[:space:]]*//[/!] $question " '
    FNR == 1 { inside = 0 }
    { is_doc = $0 ~ /^[[:space:]]*\/\/[\/!]/ }
    is_doc && !inside && $0 ~ question { print FILENAME ":" FNR ": " $0 }
    { inside = is_doc }')
titles+=$(git ls-files '*.md' | xargs grep -nE "^#+ ([0-9]+\. )?$question " || true)
if [ -n "$titles" ]; then
    printf 'broken: a title names the thing, not a question\n%s\n\n' "$titles"
    failed=1
fi

[ "$failed" -eq 0 ] && echo "rules hold"
exit "$failed"
