#!/usr/bin/env python3
"""Prints the components of the program as CycloneDX 1.6 JSON: the crates in Cargo.lock that are compiled for a target, without those that only tests use."""
import argparse, json, subprocess

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--target", required=True)
parser.add_argument("--version", required=True)
args = parser.parse_args()

tree = subprocess.run(
    ["cargo", "tree", "--locked", "--edges", "normal,build", "--target", args.target, "--prefix", "none", "--format", "{p}|{l}", "--package", "mcctl"],
    check=True, capture_output=True, text=True,
).stdout
components = {}
for line in tree.splitlines():
    crate, _, license = line.removesuffix(" (*)").partition("|")
    name, version = crate.split()[:2]
    version = version.removeprefix("v")
    own = "(" in crate and "proc-macro" not in crate
    if name == "mcctl" or not version:
        continue
    component = {"type": "library", "bom-ref": f"{name}@{version}", "name": name, "version": version}
    if not own:
        component["purl"] = f"pkg:cargo/{name}@{version}"
    if license := license.removesuffix(" (*)").replace("/", " OR "):
        component["licenses"] = [{"expression": license}]
    components[component["bom-ref"]] = component
document = {
    "bomFormat": "CycloneDX",
    "specVersion": "1.6",
    "version": 1,
    "metadata": {"component": {"type": "application", "bom-ref": "mcctl", "name": "mcctl", "version": args.version, "licenses": [{"expression": "Apache-2.0"}]}},
    "components": [components[key] for key in sorted(components)],
}
print(json.dumps(document, indent=1))
