"""Compares the tensor methods with those of the real client: the same stored objects, and the same tensors read.

  MCCTL_MASTER=HOST:PORT python -m unittest tests/python/test_interchange.py     (or MCCTL=PROGRAM, to start a master)

Needs the package mooncake 0.3.13 and PyTorch. The tensor methods run over mcctl's native client, if it is built, or
over the byte methods of the real client.
"""

import itertools
import os
import sys
import unittest
import uuid

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from stores import Memory, axes, connected, master_address, optional, target, torch, writer  # noqa: E402

from mcctl_mooncake import parallelism, tensors  # noqa: E402


class Interchange(unittest.TestCase):
    """The same calls to the real client and to the tensor methods (over the native or the real byte methods)."""

    @classmethod
    def setUpClass(cls):
        cls.module = optional("mooncake.store")
        if cls.module is None or torch is None:
            raise unittest.SkipTest("needs the package mooncake and PyTorch")
        address = master_address()
        native = optional("mcctl_mooncake.store")
        cls.native = native or cls.module
        if native is None:
            kind = type("Store", (tensors.TensorMethods, cls.module.MooncakeDistributedStore), {})
            kind._config_type = cls.module.ReplicateConfig
            cls.ours = connected(kind(), address)
        else:
            cls.ours = connected(native.MooncakeDistributedStore(), address)
        cls.real = connected(cls.module.MooncakeDistributedStore(), address)

    @classmethod
    def tearDownClass(cls):
        cls.ours.close()
        cls.real.close()

    def suffixes(self):
        names = ["", "__writer_manifest", "__parallelism_manifest", *(f"_tp_{rank}" for rank in range(4))]
        names += [f"__writer_{r}of{n}_sd{d}" for n in range(1, 5) for r in range(n) for d in range(2)]
        singles = {"dp": [f"__dp_{r}of2" for r in range(2)], "ep": ["__ep_1of2_eid7"], "pp": ["__pp_0of2_sid3"]}
        singles["tp"] = [f"__tp_{r}of{n}_sd{d}" for n in (2, 4) for r in range(n) for d in range(2)]
        for count in range(1, 5):
            for kinds in itertools.combinations(("dp", "tp", "ep", "pp"), count):
                names += ["".join(parts) for parts in itertools.product(*(singles[kind] for kind in kinds))]
        return names

    def objects(self, base):
        keys = [base + suffix for suffix in self.suffixes()]
        return {
            key[len(base) :]: self.real.get(key)
            for key, found in zip(keys, self.real.batch_is_exist(keys))
            if found == 1
        }

    SPECS = {
        "none": [], "tp0": [("tp", 0, 2, 0)], "tp1": [("TP", 1, 2, 1)], "tp-of-4": [("tp", 3, 4, 1)], "dp": [("dp", 1,
        2)], "ep": [("ep", 1, 2, None, 7)], "pp": [("pp", 0, 2, None, None, 3)], "tp+dp": [("tp", 1, 2, 1), ("dp", 0,
        2)], "all": [("pp", 0, 2, None, None, 3), ("ep", 1, 2, None, 7), ("dp", 1, 2), ("tp", 1, 2, 0)], "no-split":
        [("tp", 0, 2)], "twice": [("dp", 0, 2), ("dp", 1, 2)], "bad-rank": [("dp", 2, 2)], "bad-kind": [("xp", 0, 2)],
        "no-expert": [("ep", 0, 2)], "bad-split": [("tp", 0, 2, 2)], "tp-of-3": [("tp", 0, 3, 0), ("dp", 0, 2)],
    }  # fmt: skip

    def test_writes_store_the_same_objects(self):
        tensor = torch.arange(16, dtype=torch.float64).reshape(4, 4)
        header, _, _, _ = tensors._serialize_tensor(tensor)
        content = header + tensor.numpy().tobytes()
        for upsert, source in itertools.product(("put", "upsert"), ("", "_from")):
            for name, spec in [*self.SPECS.items(), ("writer0", writer(1, 2, 1)), ("writer3", writer(0, 3, 0))]:
                found = []
                for store, module in ((self.real, self.module), (self.ours, parallelism)):
                    base = f"interchange-{uuid.uuid4().hex}"
                    args = (tensor,)
                    if source:
                        args = (Memory(store, content=content).address, len(content))
                    given = {}
                    if isinstance(spec, list):
                        given["parallelism"] = axes(*spec, module=module) if spec else None
                    else:
                        given["writer_partition"] = spec
                    code = getattr(store, f"{upsert}_tensor_with_parallelism{source}")(base, *args, **given)
                    found.append((code, self.objects(base)))
                with self.subTest(call=upsert + source, spec=name):
                    self.assertEqual(found[1], found[0])

    def test_group_ids_are_checked_in_the_same_way(self):
        tensor = torch.arange(16).reshape(4, 4)
        calls = {
            "pub_tensor": lambda key, config: (key, tensor, config),
            "upsert_pub_tensor": lambda key, config: (key, tensor, config),
            "pub_tensor_with_tp": lambda key, config: (key, tensor, config, 0, 2, 0),
            "batch_pub_tensor": lambda key, config: ([key, key + "2"], [tensor, None], config),
            "batch_upsert_pub_tensor": lambda key, config: ([key, key + "2"], [None, tensor], config),
            "batch_pub_tensor_with_tp": lambda key, config: ([key, key + "2"], [tensor, tensor], config, 0, 2, 0),
            "put_tensor_with_parallelism": lambda key, config: (key, tensor, None, config),
            "batch_put_tensor_with_parallelism": lambda key, config: ([key, key + "2"], [tensor] * 2, None, config),
        }
        for (name, arguments), groups in itertools.product(
            calls.items(), (None, [], ["a"], ["a", "b"], ["a", "b", "c"])
        ):
            found = []
            for store, module in ((self.real, self.module), (self.ours, self.native)):
                config = module.ReplicateConfig()
                config.group_ids = groups
                base = f"interchange-{uuid.uuid4().hex}"
                found.append((getattr(store, name)(*arguments(base, config)), sorted(self.objects(base))))
            with self.subTest(call=name, groups=groups):
                self.assertEqual(found[1], found[0])

    def test_reads_return_the_same_tensors(self):
        tensor = torch.arange(16, dtype=torch.float64).reshape(4, 4)
        base = f"interchange-{uuid.uuid4().hex}"
        self.real.put_tensor(base + "full", tensor)
        self.real.put_tensor_with_tp(base + "tp", tensor, 0, 4, 0)
        for rank in range(4):
            one = axes(("tp", rank, 4, 1), module=self.module)
            self.real.put_tensor_with_parallelism(base + "shards", tensor.narrow(1, rank, 1).contiguous(), one)
            both = axes(("tp", rank, 4, 1), ("dp", 1, 2), module=self.module)
            self.real.put_tensor_with_parallelism(base + "both", tensor, both)
            self.real.put_tensor_with_parallelism(base + "writer", tensor, writer_partition=writer(rank, 4, 1))
        self.real.put_tensor_with_parallelism(base + "dp", tensor, axes(("dp", 1, 2), module=self.module))
        self.real.put_tensor_with_parallelism(base + "part", tensor[:1], axes(("tp", 0, 4, 0), module=self.module))
        targets = [None, ("as_stored",), ("full",), ("shard",), ("FULL", ("dp", 1, 2)), ("shard", ("dp", 1, 2))]
        for mode, size, dim in itertools.product(("shard", "full", "as_stored"), (1, 2, 3, 4, 8), (0, 1, 2)):
            targets += [(mode, ("tp", rank, size, dim)) for rank in (0, size - 1)]
            targets.append((mode, ("tp", size - 1, size, dim), ("dp", 1, 2)))
            targets.append((mode, ("dp", 0, 2), ("tp", size - 1, size, dim)))
        for kind, spec, into in itertools.product(
            ("full", "tp", "shards", "both", "writer", "dp", "part", "-"), targets, (False, True)
        ):
            found = []
            for store, module in ((self.real, self.module), (self.ours, parallelism)):
                wanted = None if spec is None else target(*spec, module=module)
                if into:
                    memory = Memory(store)
                    one = store.get_tensor_with_parallelism_into(base + kind, memory.address, memory.size, wanted)
                    found.append(None if one is None else (bytes(memory.memory)[: 304 + one.numel() * 8], one.tolist()))
                else:
                    one = store.get_tensor_with_parallelism(base + kind, wanted)
                    found.append(None if one is None else one.tolist())
            with self.subTest(object=kind, target=spec, into=into):
                self.assertEqual(found[1], found[0])


if __name__ == "__main__":
    unittest.main()
