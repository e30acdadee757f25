#!/usr/bin/env python3
"""Rewrites the documents in the current directory for the first upload: packages can be installed from public places.

--check: reports only whether the texts are known, and changes nothing.
Exit codes: 0 rewritten, or already up to date; 1 a document has neither the old nor the new text.
"""
import argparse, pathlib, sys

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--check", action="store_true")
parser.add_argument("--pypi", required=True, help="name on PyPI")
parser.add_argument("--repository", required=True, help="URL of the public repository")
args = parser.parse_args()

# File, text before the first upload, text after it. A replacement has as many lines as the text before it, or fewer: README is limited.
EDITS = [
    (
        "README.md",
        "packaging/deb            # apt install ./target/packages/mcctl_*.deb: the program, and systemd units that are not started yet\n"
        "packaging/wheel          # pip install target/packages/*.whl puts mcctl on PATH. On PyPI, `mcctl` is another project\n"
        "cargo install --locked --path .          # or without a package, into ~/.cargo/bin\n",
        f"pip install {args.pypi}               # puts mcctl on PATH. On PyPI, `mcctl` is another project\n"
        f"apt install ./mcctl_*.deb                # from {args.repository}/releases: the program, and units that are not started yet\n"
        "cargo install --locked --path .          # or from a clone, into ~/.cargo/bin\n",
    ),
    (
        "README.md",
        "- **Linux only, built from source.** No release binaries, packages or container images have been published yet.\n",
        "- **Linux only.** Packages are for x86_64 and aarch64, with glibc 2.28 or newer.\n",
    ),
    (
        "src/engine/base/upstream/python_client.rs",
        '/// The commands that install the client, in a clone of mcctl.\n'
        'pub const INSTALL: &str = "packaging/client-wheel && pip install target/packages/mcctl_mooncake_client-*.whl";\n',
        '/// The command that installs the client.\npub const INSTALL: &str = "pip install mcctl-mooncake-client";\n',
    ),
    ("CHANGELOG.md", " Nothing is published yet.\n", "\n"),
]

unknown = 0
texts = {}
for name, old, new in EDITS:
    path = pathlib.Path(name)
    text = texts.get(path) or path.read_text()
    if old in text:
        texts[path] = text.replace(old, new, 1)
    elif new not in text:
        print(f"error: {name} has neither the text before the first upload nor the one after it: {old.splitlines()[0]!r}", file=sys.stderr)
        unknown = 1
if not unknown and not args.check:
    for path, text in texts.items():
        path.write_text(text)
        print(f"wrote  {path}")
sys.exit(unknown)
