"""Makes `import mooncake.store` load `mcctl_mooncake.store` in this process.

All other modules of `mooncake` are those of Mooncake's wheel.
"""

import importlib
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder

PACKAGE = "mcctl_mooncake"
SOURCE = PACKAGE + ".store"
TARGET = "mooncake.store"
# The folder that contains the launcher's package, mcctl_mooncake.
PARENT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class StoreLoader:
    """Loads `mooncake.store`: the module object is the one of `mcctl_mooncake.store`."""

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        try:
            store = importlib.import_module(SOURCE)
        except ImportError as error:
            raise ImportError(
                f"cannot load {SOURCE}, which replaces {TARGET} in this process: {error}. The package is in"
                f" {os.path.join(PARENT, PACKAGE)}. Reinstall mcctl-mooncake-client, or start the program without"
                " mcctl_mooncake.run.",
                name=TARGET,
            ) from error
        # The import system returns the module that it finds under the name afterwards.
        sys.modules[TARGET] = store


class StoreFinder:
    """First in sys.meta_path: finds `mooncake.store`.

    It also finds the launcher's own package, even if sys.path does not contain it.
    """

    def find_spec(self, name, path=None, target=None):
        if name == TARGET:
            return ModuleSpec(TARGET, StoreLoader(), origin=os.path.join(PARENT, PACKAGE, "store.py"))
        if name == PACKAGE:
            return PathFinder.find_spec(PACKAGE, [PARENT])
        return None


class MissingWheelFinder:
    """Last in sys.meta_path: without Mooncake's wheel, `mooncake` is an empty package."""

    def find_spec(self, name, path=None, target=None):
        if name == "mooncake":
            spec = ModuleSpec("mooncake", None, is_package=True)
            spec.loader_state = self
            return spec
        parent, _, child = name.partition(".")
        package = sys.modules.get(parent)
        if (
            parent != "mooncake"
            or not child
            or getattr(getattr(package, "__spec__", None), "loader_state", None) is not self
        ):
            return None
        raise ModuleNotFoundError(
            f"No module named '{name}': mcctl-mooncake-client provides only {TARGET}. For the other modules, also"
            " install Mooncake's wheel: pip install mooncake-transfer-engine",
            name=name,
        )


def install():
    """Adds the finders to sys.meta_path, once per process."""
    if not any(isinstance(finder, StoreFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, StoreFinder())
        sys.meta_path.append(MissingWheelFinder())
