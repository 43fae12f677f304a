#!/usr/bin/env python3
"""Checks the floors of briquette-core: no module imports one on a floor above it.

The floors are the list between `<!-- floors -->` marks of docs/architecture.md, the lowest last. Tests are left out. A path through
`super` that leaves its module counts like one through `crate`; so does a name that the crate's root exports from a module.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "crates/briquette-core/src"


def floors():
    page = (ROOT / "docs/architecture.md").read_text()
    block = page.split("<!-- floors -->")[1].split("<!-- end of floors -->")[0]
    rows = [re.findall(r"`(\w+)`", line.split("|")[2]) for line in block.splitlines() if line.startswith("| ") and "`" in line]
    return {module: -index for index, row in enumerate(rows) for module in row}


def names(tree):
    """Returns the paths of a use tree or a path, as lists of names."""
    tree = tree.strip()
    head, brace, rest = tree.partition("{")
    if not brace:
        return [[name.strip() for name in re.split(r"\s+as\s+", tree)[0].split("::")]]
    first = [name for name in head.strip().removesuffix("::").split("::") if name]
    depth, part, parts = 0, "", []
    for character in rest.rstrip().removesuffix("}"):
        depth += (character == "{") - (character == "}")
        if character == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += character
    return [first + path for part in parts + [part] if part.strip() for path in names(part)]


def main():
    order = floors()
    library = (SOURCES / "lib.rs").read_text()
    exported = {}
    for module, tree in re.findall(r"^pub(?:\(crate\))? use (\w+)::([^;]+);", library, re.M):
        exported |= {path[-1]: module for path in names(tree)}
    modules = set(re.findall(r"^(?:pub )?mod (\w+);", library, re.M))
    failed = [f"docs/architecture.md gives the module {module} no floor" for module in sorted(modules - order.keys())]
    failed += [f"docs/architecture.md gives a floor to {module}, which is no module" for module in sorted(order.keys() - modules)]
    for file in sorted(SOURCES.rglob("*.rs")):
        path = list(file.relative_to(SOURCES).with_suffix("").parts)
        if path == ["lib"] or "tests" in path or "testkit" in path:
            continue
        own = path[0]
        path = path[:-1] if path[-1] == "mod" else path
        code = re.sub(r"//[^\n]*", "", re.sub(r"^#\[cfg\(test\)\]\nmod \w+ \{\n.*?^\}\n", "", file.read_text(), flags=re.S | re.M))
        uses = re.findall(r"\buse ((?:crate|super)::[^;]+);", code)
        inline = re.findall(r"(?<![\w:])((?:crate|super)::\w+(?:::\w+)*)", re.sub(r"\buse [^;]+;", "", code))
        for used in {tuple(names_of) for tree in uses + inline for names_of in names(tree)}:
            used = list(used)
            base = path[:]
            while used[0] == "super":
                base, used = base[:-1], used[1:]
            used = used[1:] if used[0] == "crate" else base + used
            target = exported.get(used[0], used[0])
            if target in order and own in order and target != own and order[target] >= order[own]:
                failed.append(f"{file.relative_to(ROOT)} ({own}) imports {'::'.join(used)} ({target}), which is not on a floor below it")
    for line in failed:
        print(f"broken: {line}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
