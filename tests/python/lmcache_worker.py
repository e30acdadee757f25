"""The part of tests/python/lmcache-connector that runs in LMCache's process: lmcache_worker.py MASTER run|real"""

import asyncio
import sys

import mooncake.store
import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.lookup_client import mooncake_lookup_client
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.connector import ConnectorContext
from lmcache.v1.storage_backend.connector.mooncakestore_adapter import MooncakestoreConnectorAdapter
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
from lmcache.v1.token_database import ChunkedTokenDatabase

CHUNK_TOKENS = 16
MASTER, CLIENT = sys.argv[1:]
failed = 0


def check(what, ok, detail=""):
    global failed
    failed += not ok
    print(f"{'ok' if ok else 'FAILED'} {what}{f': {detail}' if detail != '' else ''}", flush=True)


def setup_with_master(store, settings, setup=mooncake_lookup_client.setup_mooncake_store):
    """LMCache names the address master_server_address, which Mooncake ignores, and connects to 127.0.0.1:50051."""
    settings.setup_config["master_server_addr"] = MASTER
    setup(store, settings)


mooncake_lookup_client.setup_mooncake_store = setup_with_master


def metadata(model):
    return LMCacheMetadata(
        model_name=model,
        world_size=1,
        local_world_size=1,
        worker_id=0,
        local_worker_id=0,
        kv_dtype=torch.bfloat16,
        kv_shape=(4, 2, CHUNK_TOKENS, 2, 64),
        chunk_size=CHUNK_TOKENS,
    )


def config(with_metadata):
    return LMCacheEngineConfig.from_defaults(
        chunk_size=CHUNK_TOKENS,
        local_cpu=False,
        max_local_cpu_size=0.0625,
        lmcache_instance_id="test",
        extra_config={
            "mooncake_local_hostname": "127.0.0.1",
            "mooncake_metadata_server": "P2PHANDSHAKE",
            "mooncake_master_server_addr": MASTER,
            "mooncake_protocol": "tcp",
            "mooncake_global_segment_size": 0,
            "mooncake_local_buffer_size": 16 << 20,
            "save_chunk_meta": with_metadata,
            "transfer_timeout": 20,
        },
    )


def connector(settings, model):
    """Returns LMCache's connector as its adapter creates it, and the memory that it copies to and from."""
    memory = LocalCPUBackend(settings, metadata(model), dst_device="cpu")
    context = ConnectorContext(
        "plugin://mooncakestore", asyncio.get_running_loop(), memory, settings, metadata(model), "mooncakestore"
    )
    return MooncakestoreConnectorAdapter().create_connector(context), memory


def chunk(memory, end, seed):
    """Returns a memory object of LMCache with random content."""
    found = memory.allocate(end.meta_shapes, end.meta_dtypes, end.meta_fmt)
    size = found.raw_tensor.numel()
    found.raw_tensor.copy_(
        torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    )
    return found


async def one_format(with_metadata):
    name = f"save_chunk_meta {str(with_metadata).lower()}"
    model = f"model-{with_metadata}"
    settings = config(with_metadata)
    tokens = torch.arange(10 * CHUNK_TOKENS)
    keys = [key for _, _, key in ChunkedTokenDatabase(settings, metadata(model)).process_tokens(tokens)]
    absent = CacheEngineKey(model, 1, 0, 12345, torch.bfloat16)
    writer, memory = connector(settings, model)
    check(f"{name}: nothing found before the put", await writer.batched_async_contains("before", keys) == 0)
    chunks = [chunk(memory, writer, seed) for seed in range(len(keys))]
    await writer.batched_put(keys[:8], chunks[:8])
    for key, one in zip(keys[8:], chunks[8:]):
        await writer.put(key, one)
    check(f"{name}: all chunks found", await writer.batched_async_contains("after", keys) == len(keys))
    check(f"{name}: exists", [bool(writer.exists_sync(key)) for key in (keys[3], absent)] == [True, False])
    reader, _ = connector(settings, model)
    back = await reader.batched_get(keys)
    same = [one is not None and torch.equal(one.raw_tensor, sent.raw_tensor) for one, sent in zip(back, chunks)]
    check(f"{name}: a second client reads the same bytes", all(same), f"{sum(same)} of {len(keys)} chunks")
    lookup = mooncake_lookup_client.MooncakeLookupClient(settings, metadata(model), MASTER)
    check(f"{name}: MooncakeLookupClient", lookup.lookup(tokens) == len(tokens), f"{lookup.lookup(tokens)} tokens")
    other = torch.cat([tokens[: 3 * CHUNK_TOKENS], tokens[:CHUNK_TOKENS]])
    check(f"{name}: MooncakeLookupClient stops at the first other chunk", lookup.lookup(other) == 3 * CHUNK_TOKENS)
    for one in chunks + [one for one in back if one is not None]:
        one.ref_count_down()
    await reader.close()
    await writer.close()


async def run():
    for with_metadata in (True, False):
        await one_format(with_metadata)


expected = "mcctl_mooncake.store" if CLIENT == "run" else "mooncake.store"
check(f"the client is {expected}", mooncake.store.__name__ == expected, mooncake.store.__file__)
asyncio.run(run())
sys.exit(1 if failed else 0)
