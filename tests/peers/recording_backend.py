"""McctlHiCacheStorage that also prints the codes of each batch of reads. Only for sglang-damage."""
import collections
import sys
import time

from mcctl_mooncake.sglang import McctlHiCacheStorage


class Recording(McctlHiCacheStorage):
    def _get_batch_zero_copy_impl(self, key_strs, buffer_ptrs, buffer_sizes):
        start = time.monotonic()
        results = super()._get_batch_zero_copy_impl(key_strs, buffer_ptrs, buffer_sizes)
        codes = collections.Counter(r if r < 0 else "bytes" for r in results)
        print("RECORDED batch_get_into", dict(codes), f"{time.monotonic() - start:.3f} s", file=sys.stderr, flush=True)
        return results
