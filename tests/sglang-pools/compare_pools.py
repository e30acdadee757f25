#!/usr/bin/env python3
"""Compare the host pools (L2) that mcctl computes with the pools that SGLang 0.5.23 builds.

For each config.json, SGLang's own code reads the model, builds the device pools and then the HiCache host pools. The bytes
of the host buffers are compared with the output of `mcctl size-hugepages --json`, pool by pool. One line per case:

    ok  MODEL  tp=1 page=64 size=30 ...   kv 652672 24060100608, swa 161152 5940707328

Usage:
    compare_pools.py --mcctl PATH [--device cpu|cuda] [--tp 1,8] [--pages 1,64] CONFIG_OR_FOLDER...

With --device cpu, no GPU is needed, and tensors have a shape but no memory, so any size works. SGLang needs
SGLANG_USE_CPU_ENGINE=1 and a stand-in for the package sgl_kernel on PYTHONPATH. With --device cuda, device and host buffers
are really allocated, and nothing in SGLang is replaced except the transfer threads, which pools do not need.

Each line starts with ok, DIFFERS, refused (SGLang or mcctl has no pools for the case, and says why) or skip (SGLang cannot
read the config.json).

Exit codes: 0 no case differs, 1 at least one differs, 2 nothing could be compared.
"""
import argparse
import contextlib
import gc
import json
import logging
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import warnings

warnings.filterwarnings("ignore")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")

import torch
from sglang.srt.configs import model_config as configs
from sglang.srt.configs import qwen3_next
from sglang.srt.mem_cache import kv_cache_configurator as configurator
from sglang.srt.mem_cache import memory_pool
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.hybrid_cache import hybrid_pool_assembler as assembler
from sglang.srt.mem_cache.kv_cache_builder import uses_ssm_state
from sglang.srt.mem_cache.pool_host import common as host_common
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.model_executor.model_runner_components.layer_setup import resolve_layer_indices
from sglang.srt.model_executor.model_runner_components.load_model_utils import resolve_sliding_window_size
from sglang.srt.model_executor.model_runner_components.spec_aux_hidden_state import SpecAuxHiddenStateConfig
from sglang.srt.runtime_context import get_context, get_parallel, override_platform
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.utils.hf_transformers.common import _CONFIG_REGISTRY
from transformers import AutoConfig, PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

logging.disable(logging.WARNING)

REFUSED = "refused:"  # how the result of a side starts that has no pools


class Case(types.SimpleNamespace):
    """One deployment to compare: the sizes on the device, and one of `size` (GB) and `ratio` for the host."""

    DEFAULTS = dict(tp=1, page=64, tokens=12345, swa_tokens=None, slots=17, size=0, ratio=0, dtype="auto", layout="page_first",
                    drafts=0)

    def __init__(self, model, **given):
        super().__init__(model=model, **{**self.DEFAULTS, **given})
        if self.swa_tokens is None:
            self.swa_tokens = max(self.tokens // 4 // self.page, 1) * self.page

    def __str__(self):
        sizing = f"size={self.size}" if self.size else f"ratio={self.ratio:g}"
        text = f"tp={self.tp} page={self.page} tokens={self.tokens} swa={self.swa_tokens} slots={self.slots} {sizing}"
        for name in ("dtype", "layout", "drafts"):
            if getattr(self, name) != self.DEFAULTS[name]:
                text += f" {name}={getattr(self, name)}"
        return text


# --- SGLang without a GPU ---------------------------------------------------------------------------------------------

ALLOCATED = []  # bytes of every host buffer, in order of allocation


def prepare_cpu():
    """Makes SGLang size the pools as on a GPU machine, with tensors that have no memory."""
    def allocate(self, dims, dtype, device):
        ALLOCATED.append(torch.Size(dims).numel() * dtype.itemsize)
        return torch.empty(dims, dtype=dtype, device="meta")

    host_common.HostTensorAllocator.allocate = allocate
    module_of = torch.get_device_module
    torch.get_device_module = lambda device=None: torch.cpu if str(device) == "meta" else module_of(device)
    # A CPU engine pads head counts to its kernels' tile size; a GPU does not.
    qwen3_next._is_cpu = memory_pool._is_cpu = False
    for module in list(sys.modules.values()):
        if not getattr(module, "__name__", "").startswith("sglang.srt.mem_cache"):
            continue
        for name in ("_cuda_host_register", "_cuda_host_unregister"):  # pinning needs a GPU driver
            if hasattr(module, name):
                setattr(module, name, lambda *a, **k: None)
        if hasattr(module, "host_memory_budget_bytes"):  # the test machine may have less memory than the case
            module.host_memory_budget_bytes = lambda *a, **k: 1 << 60


def prepare():
    # Quantized weights need GPU kernels; the cache does not depend on them.
    configs.ModelConfig._verify_quantization = lambda self: None
    # The controller starts transfer threads. Only the pools are of interest.
    assembler.HybridCacheController.__init__ = lambda self, allocator, group, *a, **k: self.__dict__.update(
        mem_pool_host=group, layer_done_counter=None)


# --- SGLang's pools ---------------------------------------------------------------------------------------------------

def load_model(path, draft=False):
    """SGLang's ModelConfig of a config.json, and the folder it was read from."""
    config = json.loads(path.read_text())
    for part in (config, *(v for v in config.values() if isinstance(v, dict))):
        part.pop("auto_map", None)  # names Python files of the checkpoint, which are not here
    kind = config.get("model_type")
    if kind and kind not in CONFIG_MAPPING and kind not in _CONFIG_REGISTRY:
        # Such a checkpoint brings its own class. The fields of config.json are all that SGLang reads from it.
        AutoConfig.register(kind, type("Emulated", (PretrainedConfig,), {"model_type": kind}))
    folder = pathlib.Path(tempfile.mkdtemp(prefix="compare-pools-"))
    (folder / "config.json").write_text(json.dumps(config))
    return configs.ModelConfig(str(folder), trust_remote_code=False, is_draft_model=draft)


def server_args(case, model):
    fp8 = case.dtype == "fp8_e4m3"
    fields = dict(
        tp_size=case.tp, pp_size=1, page_size=case.page, enable_hierarchical_cache=True, hicache_mem_layout=case.layout,
        hicache_ratio=float(case.ratio or 2), hicache_size=case.size, kv_cache_dtype=case.dtype,
        max_mamba_cache_size=case.slots, max_running_requests=1, attention_backend="fa3")
    if configs.is_deepseek_dsa(model.hf_config):  # the row format of sparse attention depends on its kernels
        fields.update(dsa_prefill_backend="flashmla_kv" if fp8 else "flashmla_sparse",
                      dsa_decode_backend="flashmla_kv" if fp8 else "fa3")
    return fields


def pool_builder(case, model, args, device, draft=False):
    dtype = torch.float8_e4m3fn if case.dtype == "fp8_e4m3" or configs.is_deepseek_v4(model.hf_config) else torch.bfloat16
    # Instead of the loaded model: all layers are on this stage. A looped model counts each layer once.
    is_looped = not draft and getattr(model.hf_text_config, "num_loops", 1) > 1
    stand_in = types.SimpleNamespace(end_layer=model.num_hidden_layers) if is_looped else types.SimpleNamespace()
    return configurator.KVCacheConfigurator(
        device=device, gpu_id=0, attn_dp_size=1, pp_size=1, pp_group=None, model=stand_in, model_config=model,
        server_args=args, kv_cache_dtype=dtype, model_dtype=torch.bfloat16, page_size=case.page,
        sliding_window_size=resolve_sliding_window_size(stand_in, model) if model.is_hybrid_swa else None,
        spec_algorithm=SpeculativeAlgorithm.NONE, is_draft_worker=draft, post_capture_kv_active=False,
        spec_aux_config=SpecAuxHiddenStateConfig(), is_hybrid_swa=model.is_hybrid_swa,
        is_hybrid_swa_compress=model.is_hybrid_swa_compress,
        use_mla_backend=model.attention_arch == configs.AttentionArch.MLA,
        layer_info=resolve_layer_indices(model=stand_in, model_config=model, is_draft_worker=draft), forward_stream=None,
        req_to_token_pool=None, token_to_kv_pool_allocator=None, memory_pool_config=None, kv_cache_dtype_str=case.dtype)


def device_pools(case, model, args, device, draft=False, requests=None):
    builder = pool_builder(case, model, args, device, draft)
    v4 = configs.is_deepseek_v4(model.hf_config)
    if requests is None:
        context, model.context_len = model.context_len, 256  # the request table would need gigabytes, and is not a pool
        requests = builder._build_req_to_token_pool(max_num_reqs=1)
        model.context_len = context
    sizes = configurator._PoolSizes(
        max_total_num_tokens=case.tokens, max_running_requests=1,
        full_max_total_num_tokens=case.tokens if model.is_hybrid_swa else None,
        swa_max_total_num_tokens=case.swa_tokens if model.is_hybrid_swa else None,
        c4_max_total_num_tokens=case.tokens // 4 if v4 else 0, c128_max_total_num_tokens=case.tokens // 128 if v4 else 0,
        c4_state_pool_size=case.swa_tokens // case.page * 8 if v4 else 0, c128_state_pool_size=case.page if v4 else 0,
        c4_state_dtype=torch.float32 if v4 else None, c128_state_dtype=torch.float32 if v4 else None,
        unified_memory_pool_bytes=None, unified_total_bytes=None)
    pool = builder._build_token_to_kv_pool(
        sizes=sizes, is_dsa_model=configs.is_deepseek_dsa(model.hf_config), is_dsv4_model=v4, req_to_token_pool=requests)
    return requests, pool


def cache_params(case, requests, pool, drafts):
    """What a running server passes to the HiCache assembler."""
    def nothing(*a, **k):
        return None
    sub = types.SimpleNamespace(alloc=nothing, free=nothing)
    if not hasattr(requests, "mamba_allocator"):
        with contextlib.suppress(AttributeError):
            requests.mamba_allocator = sub
    allocator = types.SimpleNamespace(get_kvcache=lambda: pool, swa_attn_allocator=sub, size_full=case.tokens,
                                      c128_attn_allocator=None)
    return types.SimpleNamespace(
        page_size=case.page, token_to_kv_pool_allocator=allocator, req_to_token_pool=requests, pp_size=1, tp_cache_group=None,
        attn_cp_cache_group=None, attn_tp_cache_group=None, pp_cache_group=None, mtp_draft_device_pools=drafts,
        mtp_draft_mamba_pools=(), sidecar_draft_device_pools=())


@contextlib.contextmanager
def launched(case, model, device):
    with contextlib.ExitStack() as stack:
        args = stack.enter_context(get_context().override_server_args(
            **server_args(case, model), device="cuda" if device == "cuda" else "cpu"))
        stack.enter_context(get_parallel().override(tp_rank=0, attn_tp_rank=0, pp_rank=0, attn_dcp_rank=0, attn_cp_rank=0))
        if device != "cuda":
            stack.enter_context(override_platform(is_sm90=True))
        yield args


def tensor_bytes(value):
    """Bytes of a tensor, or of all tensors in a list."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(tensor_bytes(v) for v in value) if isinstance(value, (list, tuple)) else 0


def host_bytes(pool):
    """Bytes of the buffers of a host pool. Index pools keep their buffer under a name of their own."""
    sizes = (tensor_bytes(getattr(pool, name, None)) for name in ("kv_buffer", "index_k_with_scale_buffer", "k_buffer"))
    return next((size for size in sizes if size), 0)


def sglang_pools(case, model, device, draft_model=None):
    """{pool name: (layers, units, bytes)} of the host pools that SGLang builds for this case."""
    ALLOCATED.clear()
    with launched(case, model, device) as args:
        on = "meta" if device == "cpu" else device
        requests, pool = device_pools(case, model, args, on)
        drafts = tuple(device_pools(case, draft_model, args, on, True, requests)[1] for _ in range(case.drafts))
        components = {ComponentType.FULL}
        if model.is_hybrid_swa:
            components.add(ComponentType.SWA)
        if uses_ssm_state(model):
            components.add(ComponentType.MAMBA)
        cache = types.SimpleNamespace(components=dict.fromkeys(components), page_size=case.page, evict_host=lambda *a: None)
        group = assembler._select_strategy(pool, components).build(
            cache=cache, kvcache=pool, params=cache_params(case, requests, pool, drafts), server_args=args,
            load_cache_event=None, storage_backend="mooncake").host_pool_group
        pools = {}
        for name, entry in group.entry_map.items():
            host = entry.host_pool
            if isinstance(host, assembler.LogicalHostPool):  # the anchor of DeepSeek-V4: indices only
                continue
            layers = host.num_mamba_layers if name == PoolName.MAMBA else host.layer_num
            pools[name.value] = (layers, host.size, host_bytes(host))
        total = sum(size for _, _, size in pools.values())
        if device == "cpu" and total != sum(ALLOCATED):
            raise AssertionError(f"host buffers allocated: {sum(ALLOCATED)} bytes, found in the pools: {total}")
        if device == "cuda":  # the next case needs the pinned memory
            for entry in group.entry_map.values():
                entry.host_pool.destroy()
    return pools


# --- mcctl ------------------------------------------------------------------------------------------------------------

def mcctl_pools(program, case, path, dtype):
    command = [program, "size-hugepages", "--no-hugepages", "--json", "--model", str(path), "--tp-size", str(case.tp),
               "--page-size", str(case.page), "--kv-cache-dtype", dtype, "--device-pool-tokens", str(case.tokens),
               "--packed-draft-layers", str(case.drafts)]
    command += ["--hicache-size", str(case.size)] if case.size else ["--hicache-ratio", str(case.ratio)]
    command += ["--device-swa-tokens", str(case.swa_tokens)] if case.has_window else []
    command += ["--device-mamba-slots", str(case.slots)] if case.has_state else []
    done = subprocess.run(command, capture_output=True, text=True)
    if not done.stdout:
        raise RuntimeError(done.stderr)
    document = json.loads(done.stdout)
    if "ranks" not in document:
        raise RuntimeError(document.get("cause", done.stdout))
    pools = document["ranks"][0]["pools"]
    return {p["pool"]: (p["layers"], p["units"], p["bytes"]) for p in pools}


def show(pools):
    return ", ".join(f"{name} {layers}x{units} {size}" for name, (layers, units, size) in sorted(pools.items()))


def differs(ours, theirs):
    """Units may be pages here and tokens there; layers and bytes may not differ."""
    ours, theirs = ({name: (layers, size) for name, (layers, _, size) in pools.items()} for pools in (ours, theirs))
    return ours != theirs


def compare(case, path, model, program, device, draft_model=None):
    """(equal, SGLang's pools, mcctl's pools) as text; an error is the result of its side."""
    with launched(case, model, device):
        case.has_window, case.has_state = bool(model.is_hybrid_swa), uses_ssm_state(model)
    dtype = "bf16" if case.dtype == "auto" and not configs.is_deepseek_v4(model.hf_config) else case.dtype
    sides = []
    for measure in (lambda: sglang_pools(case, model, device, draft_model),
                    lambda: mcctl_pools(program, case, path, dtype)):
        try:
            sides.append(measure())
        except Exception as error:
            sides.append(" ".join(f"{REFUSED} {type(error).__name__}: {error}"[:300].split()))
        if device == "cuda":
            gc.collect()  # the next case needs the memory
    equal = all(isinstance(s, dict) for s in sides) and not differs(*sides)
    return (equal, *(show(s) if isinstance(s, dict) else s for s in sides))


def page_sizes(model, wanted):  # some models accept one page size only
    if configs.is_deepseek_v4(model.hf_config):
        return [256]
    if configs.is_minimax_sparse(model.hf_config):
        return [128]
    if configs.is_deepseek_dsa(model.hf_config):
        return [64 * configs.get_dsa_index_kpool(model.hf_config)]
    return wanted


def config_files(arguments):
    for argument in map(pathlib.Path, arguments):
        yield from sorted(argument.rglob("*.json")) if argument.is_dir() else [argument]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mcctl", required=True, help="the mcctl program to check")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--tp", default="1,8", help="tensor parallel sizes; rank 0 of each is built")
    parser.add_argument("--pages", default="1,64", help="page sizes; models with a fixed page size use theirs")
    parser.add_argument("--tokens", type=int, default=12345, help="tokens of the device pool")
    parser.add_argument("configs", nargs="+", help="config.json files, or folders with them")
    options = parser.parse_args()
    prepare()
    if options.device == "cpu":
        prepare_cpu()
    counts = dict.fromkeys(("ok", "DIFFERS", "refused", "skip"), 0)
    for path in config_files(options.configs):
        try:
            model = load_model(path)
        except Exception as error:
            counts["skip"] += 1
            print("skip", path.stem, " ".join(f"SGLang cannot read it: {error}"[:160].split()), sep="\t")
            continue
        v4 = configs.is_deepseek_v4(model.hf_config)
        for tp in map(int, options.tp.split(",")):
            for page in page_sizes(model, [int(p) for p in options.pages.split(",")]):
                for sizing in (dict(size=1), dict(ratio=2), dict(ratio=0.5)):
                    if v4 and "size" in sizing:
                        continue  # SGLang refuses --hicache-size for DeepSeek-V4
                    case = Case(path.stem, tp=tp, page=page, tokens=options.tokens, **sizing)
                    equal, theirs, ours = compare(case, path, model, options.mcctl, options.device)
                    refused = REFUSED in theirs or REFUSED in ours
                    status = "ok" if equal else "refused" if refused else "DIFFERS"
                    counts[status] += 1
                    print(status, path.stem, case, theirs, *([] if equal else ["mcctl: " + ours]), sep="\t", flush=True)
    print(", ".join(f"{count} {status}" for status, count in counts.items()), file=sys.stderr)
    sys.exit(1 if counts["DIFFERS"] else 0 if counts["ok"] else 2)


if __name__ == "__main__":
    main()
