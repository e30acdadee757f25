#!/usr/bin/env python3
"""Writes a wheel that puts a program on PATH, and its JSON Schemas in share/mcctl/schemas. The metadata is that of
packaging/python/pyproject.toml. Prints its path.

All files have the date $SOURCE_DATE_EPOCH, so two runs give the same bytes.
"""
import argparse, ast, base64, hashlib, os, pathlib, time, zipfile

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--program", required=True)
parser.add_argument("--version", required=True)
parser.add_argument("--platform", required=True, help="platform tag, e.g. manylinux_2_28_x86_64")
parser.add_argument("--sbom", required=True, help="CycloneDX file")
parser.add_argument("--out", required=True, help="directory")
args = parser.parse_args()

# One line per key, with texts and lists that Python reads, too. Python has a TOML reader only since 3.11.
section = pathlib.Path("packaging/python/pyproject.toml").read_text().split("[project]\n")[1].split("\n[")[0]
project = {key.strip(): ast.literal_eval(value.strip()) for key, _, value in (line.partition("=") for line in section.splitlines()) if value}
stem = f"{project['name'].replace('-', '_')}-{args.version}"
metadata = [
    "Metadata-Version: 2.4",
    f"Name: {project['name']}",
    f"Version: {args.version}",
    f"Summary: {project['description']}",
    f"License-Expression: {project['license']}",
    "License-File: LICENSE",
    f"Requires-Python: {project['requires-python']}",
    *(f"Classifier: {name}" for name in project["classifiers"]),
    "Description-Content-Type: text/markdown; charset=UTF-8",
    "",
    pathlib.Path("README.md").read_text(),
]
tag = f"py3-none-{args.platform}"
info = f"{stem}.dist-info"
files = {
    f"{stem}.data/scripts/mcctl": (pathlib.Path(args.program).read_bytes(), 0o755),
    **{
        f"{stem}.data/data/share/mcctl/schemas/{schema.name}": (schema.read_bytes(), 0o644)
        for schema in sorted(pathlib.Path("packaging/schemas").glob("*.json"))
    },
    f"{info}/METADATA": ("\n".join(metadata).encode(), 0o644),
    f"{info}/WHEEL": (f"Wheel-Version: 1.0\nGenerator: mcctl\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(), 0o644),
    f"{info}/licenses/LICENSE": (pathlib.Path("LICENSE").read_bytes(), 0o644),
    f"{info}/sboms/mcctl.cdx.json": (pathlib.Path(args.sbom).read_bytes(), 0o644),
}


def digest(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


record = [f"{name},sha256={digest(data)},{len(data)}\n" for name, (data, _) in files.items()]
files[f"{info}/RECORD"] = ("".join([*record, f"{info}/RECORD,,\n"]).encode(), 0o644)

path = pathlib.Path(args.out) / f"{stem}-{tag}.whl"
date = time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))[:6]
with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
    for name, (data, mode) in files.items():
        entry = zipfile.ZipInfo(name, date)
        entry.external_attr = (0o100000 | mode) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        wheel.writestr(entry, data)
print(path)
