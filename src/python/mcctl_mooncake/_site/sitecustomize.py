"""Runs at the start of each Python process whose PYTHONPATH begins with this folder (see mcctl_mooncake/run.py).

It installs the redirection of `mooncake.store`, removes this folder from sys.path, and then runs the sitecustomize that
the folder hides, if there is one. Child processes inherit PYTHONPATH, so the same happens in them.
"""

import os
import sys


def _run_hidden():
    """Puts the next sitecustomize on sys.path in this module's place.

    Without one, the import fails with the error that `site` ignores, as if this module did not exist.
    """
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize")
    if spec is None or spec.loader is None:
        raise ImportError("No module named 'sitecustomize'", name="sitecustomize")
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if sys.version_info >= (3, 11):
    import _mcctl_mooncake_redirect

    _mcctl_mooncake_redirect.install()

_folder = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _folder]
_run_hidden()
