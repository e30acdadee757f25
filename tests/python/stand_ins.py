"""Packages for the tests of the launcher: a copy of mcctl_mooncake with a fake store, and a fake Mooncake wheel."""

import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SOURCE = os.path.join(ROOT, "src", "python", "mcctl_mooncake")
FAKE_STORE = """
IS_FAKE = True
class ReplicateConfig:
    group_ids = None
class MooncakeDistributedStore:
    pass
"""


def write(folder, files):
    """Writes {relative path: text} below the folder."""
    for name, text in files.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    return folder


def client(folder, store=FAKE_STORE):
    """Copies the launcher and the SGLang backend. The store is `store`, so the native module is not required."""
    package = os.path.join(folder, "mcctl_mooncake")
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "__init__.py", "store.py")
    shutil.copytree(SOURCE, package, ignore=ignored)
    write(package, {"__init__.py": "", **({"store.py": store} if store is not None else {})})
    return folder


def wheel(folder):
    """Writes a package like Mooncake's wheel, whose `__init__` imports `mooncake.store`, as that of 0.3.13 does."""
    return write(
        folder,
        {
            "mooncake/__init__.py": (
                "try:\n    from mooncake.store import BufferPool\nexcept ImportError:\n    BufferPool = None\n"
            ),
            "mooncake/store.py": "IS_FAKE = False\nBufferPool = object\n",
            "mooncake/engine.py": "NAME = 'the engine of the wheel'\n",
            "mooncake/service.py": "from mooncake.store import IS_FAKE\n",
        },
    )


def python(*arguments, path=(), timeout=30, **kw):
    """Runs this interpreter with the folders `path` as PYTHONPATH. Returns the completed process."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "SGLANG", "MOONCAKE"))}
    env.update(PYTHONDONTWRITEBYTECODE="1", **kw.pop("env", {}))
    if path:
        env["PYTHONPATH"] = os.pathsep.join(path)
    return subprocess.run([sys.executable, *arguments], env=env, capture_output=True, text=True, timeout=timeout, **kw)
