"""mcctl's client as a HiCache storage backend of SGLang, for --hicache-storage-backend dynamic.

    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{"backend_name": "mcctl",
      "module_path": "mcctl_mooncake.sglang", "class_name": "McctlHiCacheStorage", "interface_v1": 1}'

All other keys of the configuration, the environment variables and the keys of the objects are those of SGLang's own
Mooncake backend, whose class is the base class. Mooncake's wheel is not required.
"""

from typing import Any, Optional

from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
from sglang.srt.mem_cache.storage.mooncake_store.mooncake_store import MooncakeStore

from mcctl_mooncake.store import MooncakeDistributedStore, ReplicateConfig


class McctlHiCacheStorage(MooncakeStore):
    """SGLang's Mooncake backend with mcctl's client instead of the one from Mooncake's wheel."""

    def __init__(self, storage_config: HiCacheStorageConfig, options: Optional[dict] = None):
        """SGLang passes its keyword arguments for dynamic backends as `options`, which 0.5.23 leaves empty.

        Raises ValueError if the configuration requires what SGLang does not offer to dynamic backends.
        """
        if not (storage_config.extra_config or {}).get("interface_v1"):
            raise ValueError(
                'the HiCache backend of mcctl requires "interface_v1": 1 in --hicache-storage-backend-extra-config:'
                " without it, SGLang copies each page and uses calls that Mooncake backends do not support"
            )
        super().__init__(storage_config, None)

    def _load_config(self, storage_config: Any = None):
        config = super()._load_config(storage_config)
        if config.standalone_storage:
            raise ValueError(
                "standalone_storage requires host memory from Mooncake's allocator, which SGLang uses only with"
                " --hicache-storage-backend mooncake: start SGLang with python -m mcctl_mooncake.run and that backend"
            )
        return config

    def _import_mooncake_store(self):
        return MooncakeDistributedStore

    def _import_mooncake_group_semantics(self):
        return ReplicateConfig, hasattr(ReplicateConfig, "group_ids") or hasattr(ReplicateConfig(), "group_ids")

    def register_mem_pool_host(self, mem_pool_host):
        # For backend mooncake, SGLang itself replaces this layout.
        if getattr(mem_pool_host, "layout", None) == "layer_first" and not self.is_mla_backend:
            raise ValueError(
                "the memory layout layer_first cannot be stored: set --hicache-mem-layout page_first"
                " (or page_first_direct, with --hicache-io-backend direct)"
            )
        super().register_mem_pool_host(mem_pool_host)
