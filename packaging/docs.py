#!/usr/bin/env python3
"""Copies the documentation to a package: README.md, SECURITY.md and docs/.

  packaging/docs.py FOLDER [NAME...]

NAME: another file of the package in FOLDER, to which links remain links. Links to files that the package does not contain become text.
Exit codes: 0 copied; 1 a link leads to a file that does not exist.
"""
import os, pathlib, re, sys

folder, others = pathlib.Path(sys.argv[1]), {pathlib.Path(name) for name in sys.argv[2:]}
files = [pathlib.Path("README.md"), pathlib.Path("SECURITY.md"), *sorted(pathlib.Path("docs").glob("*.md")), pathlib.Path("docs/figures/README.md"), *sorted(pathlib.Path("docs/figures").glob("*.svg"))]
known = {*files, *others}
missing = 0


def link(document, match):
    """The link, or its text if the package does not contain its target."""
    global missing
    text, target = match.group(1), match.group(2).split("#")[0]
    if not target or ":" in target:
        return match.group(0)
    path = pathlib.Path(os.path.normpath(document.parent / target))
    if not path.exists():
        print(f"error: {document}: {target} does not exist", file=sys.stderr)
        missing = 1
    return match.group(0) if path in known else text


for path in files:
    to = folder / path
    to.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".md":
        to.write_text(re.sub(r"\[([^\[\]]*)\]\(([^()\s]+)\)", lambda match: link(path, match), path.read_text()))
    else:
        to.write_bytes(path.read_bytes())
    to.chmod(0o644)
sys.exit(missing)
