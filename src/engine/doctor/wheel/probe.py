"""Prints what this interpreter imports as mooncake.store: one JSON line before the import, and one after it."""
import sys

# A directory named mooncake in the working directory is not the wheel.
sys.path = [folder for folder in sys.path if folder]

import importlib.metadata, json, os

wheels = {}
for found in importlib.metadata.distributions():
    name = (found.metadata["Name"] or "").lower().replace("_", "-").replace(".", "-")
    if name.startswith("mooncake"):
        packages = os.path.realpath(str(found.locate_file("")))
        wheels.setdefault((name, packages), {"name": name, "release": found.version, "packages": packages})
print(json.dumps({"version": sys.version.split()[0], "wheels": list(wheels.values())}), flush=True)
try:
    import mooncake.store

    print(json.dumps({"file": mooncake.store.__file__}))
except BaseException as error:
    print(json.dumps({"kind": type(error).__name__, "module": getattr(error, "name", None), "message": str(error)}))
