"""Tests of mcctl_mooncake.sglang with a fake SGLang: the interfaces of 0.5.23 that the backend relies on."""

import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from stand_ins import client, python, write  # noqa: E402

# SGLang's MooncakeStore in the order of its calls: the store's class, the group semantics, the configuration.
FAKE_SGLANG = {
    "sglang/__init__.py": "",
    "sglang/srt/__init__.py": "",
    "sglang/srt/mem_cache/__init__.py": "",
    "sglang/srt/mem_cache/hicache_storage.py": """
class HiCacheStorage:
    pass
class HiCacheStorageConfig:
    def __init__(self, extra_config=None, is_mla_model=False):
        self.extra_config, self.is_mla_model = extra_config, is_mla_model
""",
    "sglang/srt/mem_cache/storage/__init__.py": "",
    "sglang/srt/mem_cache/storage/mooncake_store/__init__.py": "",
    "sglang/srt/mem_cache/storage/mooncake_store/mooncake_store.py": """
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage
class Config:
    def __init__(self, values):
        self.standalone_storage = values.get("standalone_storage", False)
class MooncakeStore(HiCacheStorage):
    def __init__(self, storage_config=None, mem_pool=None):
        self.mem_pool = mem_pool
        store = self._import_mooncake_store()
        self.replicate_config, self.groups = self._import_mooncake_group_semantics()
        self.store = store()
        self.config = self._load_config(storage_config)
        self.is_mla_backend = storage_config.is_mla_model
    def _import_mooncake_store(self):
        from mooncake.store import MooncakeDistributedStore
    def _import_mooncake_group_semantics(self):
        from mooncake.store import ReplicateConfig
    def _load_config(self, storage_config):
        return Config(storage_config.extra_config)
    def register_mem_pool_host(self, mem_pool_host):
        self.registered = mem_pool_host
""",
}
# As SGLang's factory creates a dynamic backend.
FACTORY = """
import importlib, sys
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, HiCacheStorageConfig
def create(mla=False, **extra):
    extra = {"module_path": "mcctl_mooncake.sglang", "class_name": "McctlHiCacheStorage", **extra}
    cls = getattr(importlib.import_module(extra["module_path"]), extra["class_name"])
    assert issubclass(cls, HiCacheStorage)
    return cls(HiCacheStorageConfig(extra, mla), {})
class Pool:
    def __init__(self, layout):
        self.layout = layout
def refused(call):
    try:
        call()
    except ValueError as error:
        return str(error)
"""


class Backend(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="mcctl-sglang.")
        self.addCleanup(folder.cleanup)
        self.path = (
            client(os.path.join(folder.name, "client")),
            write(os.path.join(folder.name, "sglang"), FAKE_SGLANG),
        )

    def run_code(self, code):
        done = python("-c", FACTORY + code, path=self.path)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def test_it_uses_the_client_without_a_wheel(self):
        out = self.run_code("""
b = create(interface_v1=1)
print(type(b.store).__module__, b.replicate_config.__module__, b.groups, b.mem_pool, "mooncake" in sys.modules)""")
        self.assertEqual(out, "mcctl_mooncake.store mcctl_mooncake.store True None False\n")

    def test_the_zero_copy_interface_is_required(self):
        for extra in ("", "interface_v1=0"):
            self.assertIn('"interface_v1": 1', self.run_code(f"print(refused(lambda: create({extra})))"))

    def test_standalone_storage_is_refused(self):
        out = self.run_code("print(refused(lambda: create(interface_v1=1, standalone_storage=True)))")
        self.assertIn("mcctl_mooncake.run", out)

    def test_layer_first_is_refused_except_for_mla(self):
        out = self.run_code("""
for mla in (False, True):
    for layout in ("layer_first", "page_first", "page_first_direct"):
        b = create(mla, interface_v1=1)
        error = refused(lambda: b.register_mem_pool_host(Pool(layout)))
        print(mla, layout, error is not None, hasattr(b, "registered"))""")
        self.assertEqual([line.split()[2:] for line in out.splitlines()], [["True", "False"]] + [["False", "True"]] * 5)


if __name__ == "__main__":
    unittest.main()
