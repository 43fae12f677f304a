#!/usr/bin/env bash
# Lists the public items of the library crates in docs/api/, one line each, from rustdoc's JSON.
#
#   scripts/public-api.sh            # writes the listings
#   scripts/public-api.sh --check    # compares with them, names what was added or removed, and exits 1 if anything was
#   scripts/public-api.sh --counts   # writes nothing; prints the number of items of each kind
#
# The JSON is an unstable output of rustdoc: where a toolchain refuses it or has another format, the script says so and exits 0. Implementations
# of auto traits and blanket implementations are not listed. Paths begin below the crate.
set -euo pipefail
cd "$(dirname "$0")/.."
skip() { echo "skipped: $*"; exit 0; }
command -v python3 > /dev/null || skip "python3 is missing"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Only rustdoc sees the variable: build scripts run again when it changes, and all dependencies would be built again.
printf '#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec "%s" "$@"\n' "${RUSTDOC:-rustdoc}" > "$work/rustdoc"
chmod +x "$work/rustdoc"
"$work/rustdoc" -Z unstable-options --output-format json --version > /dev/null 2>&1 || skip "this rustdoc writes no JSON"

target=${CARGO_TARGET_DIR:-target}
# The whole workspace, so that dependencies have the features of its other builds.
RUSTDOC=$work/rustdoc RUSTDOCFLAGS="-Z unstable-options --output-format json" \
    cargo doc --workspace --lib --no-deps --locked --quiet --features briquette/testing

python3 - "$target/doc" "${1:-}" <<'PYTHON'
import collections, difflib, json, os, sys

folder, mode = sys.argv[1:]
FORMATS = range(56, 58)
CRATES = ["briquette-core", "briquette-derive", "briquette-sim", "briquette-zoo", "briquette-tcp", "briquette-device", "briquette"]
join = ", ".join

class Crate:
    def __init__(self, data):
        self.index, self.paths, self.root = data["index"], data["paths"], data["root"]
        self.lines, self.places, self.counts = set(), {}, collections.Counter()

    def item(self, id):
        return self.index.get(str(id))

    # Types, as they are written, with the last segment of each path.

    def args(self, args):
        if not args:
            return ""
        if "parenthesized" in args:
            of = args["parenthesized"]
            return f"({join(map(self.type, of['inputs']))})" + self.returns(of["output"])
        of = args.get("angle_bracketed")
        if not of:
            return ""
        parts = [self.arg(arg) for arg in of["args"]]
        for bound in of["constraints"]:
            to = bound["binding"]
            value = " = " + self.term(to["equality"]) if "equality" in to else ": " + self.bounds(to["constraint"])
            parts.append(bound["name"] + value)
        return f"<{join(parts)}>" if parts else ""

    def arg(self, arg):
        if arg == "infer":
            return "_"
        kind, of = next(iter(arg.items()))
        return self.type(of) if kind == "type" else of["expr"] if kind == "const" else of

    def term(self, term):
        return self.type(term["type"]) if "type" in term else term["constant"]["expr"]

    def path(self, of):
        return (of.get("path") or of.get("name")).split("::")[-1] + self.args(of.get("args"))

    def bounds(self, bounds):
        return " + ".join(self.bound(bound) for bound in bounds)

    def bound(self, bound):
        kind, of = next(iter(bound.items()))
        if kind == "outlives":
            return of
        if kind == "use":
            return f"use<{join(next(iter(arg.values())) for arg in of)}>"
        return {"none": "", "maybe": "?", "maybe_const": "~const "}[of["modifier"]] + self.forall(of) + self.path(of["trait"])

    def forall(self, of):
        names = [param["name"] for param in of.get("generic_params", [])]
        return f"for<{join(names)}> " if names else ""

    def type(self, of):
        if of == "infer":
            return "_"
        kind, of = next(iter(of.items()))
        if kind == "resolved_path":
            return self.path(of)
        if kind in ("generic", "primitive"):
            return of
        if kind == "tuple":
            return f"({join(map(self.type, of))}{',' if len(of) == 1 else ''})"
        if kind == "slice":
            return f"[{self.type(of)}]"
        if kind == "array":
            return f"[{self.type(of['type'])}; {of['len']}]"
        if kind == "impl_trait":
            return "impl " + self.bounds(of)
        if kind == "dyn_trait":
            traits = [self.forall(each) + self.path(each["trait"]) for each in of["traits"]]
            return "dyn " + " + ".join(traits + ([of["lifetime"]] if of["lifetime"] else []))
        if kind == "borrowed_ref":
            lifetime = of["lifetime"] + " " if of["lifetime"] else ""
            return "&" + lifetime + ("mut " if of["is_mutable"] else "") + self.type(of["type"])
        if kind == "raw_pointer":
            return ("*mut " if of["is_mutable"] else "*const ") + self.type(of["type"])
        if kind == "qualified_path":
            of_trait = f" as {self.path(of['trait'])}" if of.get("trait") and of["trait"].get("path") else ""
            own = self.type(of["self_type"])
            return (f"<{own}{of_trait}>" if of_trait else own) + "::" + of["name"]
        if kind == "function_pointer":
            return self.forall(of) + "fn" + self.signature(of["sig"])
        raise SystemExit(f"public-api: a kind of type that this script does not know: {kind}")

    def signature(self, sig):
        return f"({join(self.input(*each) for each in sig['inputs'])})" + self.returns(sig["output"])

    def input(self, name, type):
        text = self.type(type)
        if name == "self":
            return {"Self": "self", "&Self": "&self", "&mut Self": "&mut self"}.get(text, f"self: {text}")
        return f"{name}: {text}" if name and name != "_" else text

    def returns(self, output):
        return f" -> {self.type(output)}" if output else ""

    def generics(self, of):
        params, wheres = [], []
        for param in of["params"]:
            kind, how = next(iter(param["kind"].items()))
            if kind == "const":
                params.append(f"const {param['name']}: {self.type(how['type'])}")
            elif kind == "lifetime":
                params.append(param["name"])
            elif not how.get("is_synthetic"):
                bounds = self.bounds(how["bounds"])
                default = f" = {self.type(how['default'])}" if how["default"] else ""
                params.append(param["name"] + (f": {bounds}" if bounds else "") + default)
        for where in of["where_predicates"]:
            kind, how = next(iter(where.items()))
            if kind == "bound_predicate":
                wheres.append(f"{self.forall(how)}{self.type(how['type'])}: {self.bounds(how['bounds'])}")
            elif kind == "lifetime_predicate":
                wheres.append(f"{how['lifetime']}: {' + '.join(how['outlives'])}")
            else:
                wheres.append(f"{self.type(how['lhs'])} == {self.term(how['rhs'])}")
        return f"<{join(params)}>" if params else "", f" where {join(wheres)}" if wheres else ""

    # Items.

    def collect(self, id, path, seen=()):
        """Finds the public paths of every item."""
        module = self.item(id)["inner"]["module"]
        for child in module["items"]:
            item = self.item(child)
            if item is None or item["visibility"] not in ("public", "default"):
                continue
            kind, of = next(iter(item["inner"].items()))
            if kind == "use":
                target = self.item(of["id"]) if of["id"] is not None else None
                if target is None:
                    summary = self.paths.get(str(of["id"]), {}).get("path")
                    self.lines.add(f"use {path}{of['name']} = {'::'.join(summary) if summary else of['source']}")
                    continue
                if of["is_glob"]:
                    self.collect(target["id"], path, seen)
                    continue
                item, name, kind = target, of["name"], next(iter(target["inner"]))
            else:
                name = item["name"]
            self.places.setdefault(item["id"], []).append(path + name)
            if kind == "module" and item["id"] not in seen:
                self.collect(item["id"], f"{path}{name}::", (*seen, item["id"]))

    def all(self):
        self.collect(self.root, "")
        for id, places in self.places.items():
            places.sort(key=lambda path: (path.count("::"), path))
            self.lines.update(f"use {other} = {places[0]}" for other in places[1:])
            self.define(self.item(id), places[0])
        return sorted(self.lines, key=lambda line: (line.split(" ", 1)[1], line))

    def define(self, item, path):
        kind, of = next(iter(item["inner"].items()))
        self.counts[kind] += 1
        open_end = " (non-exhaustive)" if any("non_exhaustive" in str(attribute) for attribute in item["attrs"]) else ""
        params, where = self.generics(of["generics"]) if isinstance(of, dict) and "generics" in of else ("", "")
        add = self.lines.add
        if kind == "function":
            add(f"fn {path}{params}{self.signature(of['sig'])}{where}")
        elif kind == "constant":
            add(f"const {path}: {self.type(of['type'])}")
        elif kind == "static":
            add(f"static {path}: {self.type(of['type'])}")
        elif kind == "type_alias":
            add(f"type {path}{params} = {self.type(of['type'])}")
        elif kind == "trait":
            bounds = self.bounds(of["bounds"])
            add(f"trait {path}{params}{': ' + bounds if bounds else ''}{where}")
            for child in of["items"]:
                self.member(self.item(child), path, "required" if self.is_required(self.item(child)) else "provided")
        elif kind == "struct":
            add(f"struct {path}{params}{self.fields(of['kind'], path)}{where}{open_end}")
        elif kind == "enum":
            add(f"enum {path}{params}{where}{open_end}")
            for child in of["variants"]:
                variant = self.item(child)
                name = f"{path}::{variant['name']}"
                add(f"variant {name}{self.fields(variant['inner']['variant']['kind'], name)}")
        else:
            add(f"{ {'module': 'mod'}.get(kind, kind) } {path}")
        children = [self.item(child) for child in of.get("impls", [])] if isinstance(of, dict) else []
        traits = sorted({trait for child in children if child for trait in self.implementation(child, item["name"], path)})
        if traits:
            add(f"impl {path}: {join(traits)}")

    def fields(self, kind, path):
        if not isinstance(kind, dict):
            return ""
        shape, of = next(iter(kind.items()))
        if shape == "tuple":
            types = [self.type(self.item(id)["inner"]["struct_field"]) if id is not None and self.item(id) else "_" for id in of]
            return f"({join(types)})"
        for id in of["fields"]:
            field = self.item(id)
            self.lines.add(f"field {path}::{field['name']}: {self.type(field['inner']['struct_field'])}")
        return " { .. }" if of["has_stripped_fields"] else ""

    def is_required(self, item):
        kind, of = next(iter(item["inner"].items()))
        return not of["has_body"] if kind == "function" else of["value" if kind == "assoc_const" else "type"] is None

    def implementation(self, item, name, path):
        """Lists the items of an own implementation; yields the trait of another."""
        of = item["inner"]["impl"]
        if of["is_synthetic"] or of["blanket_impl"]:
            return
        if of["trait"]:
            trait, own = self.path(of["trait"]), self.type(of["for"])
            if trait != "StructuralPartialEq":
                yield trait if own.split("<")[0] == name else f"{trait} for {own}"
            return
        for child in of["items"]:
            if self.item(child) and self.item(child)["visibility"] == "public":
                self.member(self.item(child), path, "")

    def member(self, item, path, note):
        kind, of = next(iter(item["inner"].items()))
        name, note = f"{path}::{item['name']}", f" ({note})" if note else ""
        params, where = self.generics(of["generics"]) if "generics" in of else ("", "")
        if kind == "function":
            self.lines.add(f"fn {name}{params}{self.signature(of['sig'])}{where}{note}")
        elif kind == "assoc_const":
            self.lines.add(f"const {name}: {self.type(of['type'])}{note}")
        elif kind == "assoc_type":
            bounds = self.bounds(of["bounds"])
            self.lines.add(f"type {name}{': ' + bounds if bounds else ''}{note}")

changed = False
os.makedirs("docs/api", exist_ok=True)
for crate in CRATES:
    data = json.load(open(f"{folder}/{crate.replace('-', '_')}.json", encoding="utf-8"))
    if data["format_version"] not in FORMATS:
        print(f"skipped: rustdoc's JSON has format {data['format_version']}, and this script reads {FORMATS[0]} to {FORMATS[-1]}")
        sys.exit(0)
    found = Crate(data)
    lines, listing = found.all(), f"docs/api/{crate}.txt"
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(found.counts.items()))
    twice = sum(len(places) > 1 for places in found.places.values())
    print(f"{crate}: {sum(found.counts.values())} items ({counts}), {twice} of them by more than one path; {len(lines)} lines")
    if mode == "--check":
        known = open(listing, encoding="utf-8").read().splitlines() if os.path.exists(listing) else []
        difference = [line for line in difflib.ndiff(known, lines) if line[:2] in ("+ ", "- ")]
        for line in difference:
            print(f"{'added:  ' if line[0] == '+' else 'removed:'} {line[2:]}")
        changed |= bool(difference)
    elif mode == "":
        open(listing, "w", encoding="utf-8").write("\n".join(lines) + "\n")
if changed:
    print("the public interface differs from docs/api: run scripts/public-api.sh, and commit the listings if this is intended")
sys.exit(changed)
PYTHON
