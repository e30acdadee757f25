"""Tests of the tensor methods, with PyTorch.

  python -m unittest tests/python/test_tensors.py

They run over a store in a dict. With MCCTL_MASTER=HOST:PORT, or MCCTL=PROGRAM to start a master, they also run over
mcctl's native client, if it is built.
"""

import os
import sys
import threading
import unittest
import uuid

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from stores import DictionaryStore, Memory, axes, connected, master_address, optional, target, torch, writer  # noqa: E402

from mcctl_mooncake import layout, parallelism, tensors  # noqa: E402


class Layout(unittest.TestCase):
    REAL = (
        "4e4f4f4d01003001000000000200000001000000000000003001000000000000180000000000000002000000000000000600000000000000"
        + "ff" * 48 + "02000000000000000300000000000000" + "ff" * 48 +
        "01000000000000000100000000000000010000000200000001000000000000000300000000000000"
    )  # fmt: skip

    def test_a_shard_header_has_the_bytes_of_the_real_client(self):
        axis = layout.Axis(parallelism.TP, 1, 2, 1, 0, 3)
        packed = layout.pack(0, (2, 6), (2, 3), [axis])
        self.assertEqual(packed, bytes.fromhex(self.REAL).ljust(304, b"\0"))
        self.assertEqual(layout.parse(packed, 304 + 24), layout.Header(0, (2, 6), (2, 3), layout.SHARD, (axis,), 24))

    def test_parse_refuses_other_lengths_and_damaged_fields(self):
        packed = layout.pack(0, (2, 3), (2, 3))
        self.assertIsNotNone(layout.parse(packed, 328))
        for length in (0, 303, 304, 327, 329):
            self.assertIsNone(layout.parse(packed, length))
        for offset, value in (
            (0, 0),
            (4, 2),
            (6, 0),
            (8, 15),
            (8, 1),
            (12, 9),
            (16, 2),
            (24, 49),
            (32, 0),
            (104, 9),
            (168, 5),
        ):
            damaged = bytearray(packed)
            damaged[offset] = value
            self.assertIsNone(layout.parse(damaged, 328), offset)

    def test_a_manifest_round_trips(self):
        manifest = layout.Manifest(3, (2, 6), 1, 2)
        self.assertEqual(layout.parse_manifest(layout.pack_manifest(manifest)), manifest)
        self.assertIsNone(layout.parse_manifest(b"\0" * 96))
        self.assertIsNone(layout.parse_manifest(None))


@unittest.skipIf(torch is None, "PyTorch is not installed")
class Cases:
    """Cases for any store. `self.store` is set up."""

    def setUp(self):
        self.base = f"tensors-{uuid.uuid4().hex}"
        self.tensor = torch.arange(16, dtype=torch.int32).reshape(4, 4)

    def object(self, tensor):
        header, _, _, tensor = tensors._serialize_tensor(tensor)
        return header + bytes(tensor.contiguous().view(torch.uint8).flatten().tolist())

    def same(self, found, expected):
        self.assertIsNotNone(found)
        self.assertEqual((found.dtype, tuple(found.shape)), (expected.dtype, tuple(expected.shape) or (1,)))
        self.assertTrue(torch.equal(found.reshape(expected.shape), expected))

    def test_every_data_type_round_trips(self):
        for name in layout.DTYPES:
            dtype = getattr(torch, name)
            tensor = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype)
            self.assertEqual(self.store.put_tensor(self.base + name, tensor), 0)
            self.same(self.store.get_tensor(self.base + name).float(), tensor.float())
            self.assertEqual(self.store.get_tensor(self.base + name).dtype, dtype)

    def test_every_number_of_dimensions_round_trips(self):
        for dimensions in range(9):
            tensor = torch.arange(2**dimensions).reshape((2,) * dimensions)
            self.assertEqual(self.store.put_tensor(f"{self.base}{dimensions}", tensor), 0)
            self.same(self.store.get_tensor(f"{self.base}{dimensions}"), tensor)
        self.assertEqual(self.store.put_tensor(self.base, torch.zeros((1,) * 9)), -600)

    def test_values_that_are_not_tensors_are_refused(self):
        for value in (None, 1, b"bytes", [1.0], torch.zeros(1, dtype=torch.complex64), torch.zeros(2, 2).to_sparse()):
            self.assertEqual(self.store.put_tensor(self.base, value), -600)
        self.store.put(self.base, b"bytes")
        self.assertIsNone(self.store.get_tensor(self.base))

    def test_empty_and_strided_tensors_round_trip(self):
        for i, tensor in enumerate(
            (torch.zeros(0, 4), self.tensor.t(), self.tensor[:, 1:3], torch.zeros(2, requires_grad=True))
        ):
            self.assertEqual(self.store.put_tensor(f"{self.base}{i}", tensor), 0)
            self.same(self.store.get_tensor(f"{self.base}{i}"), tensor.detach())

    def test_put_keeps_and_upsert_replaces(self):
        self.assertEqual(self.store.put_tensor(self.base, self.tensor), 0)
        self.assertEqual(self.store.put_tensor(self.base, self.tensor + 1), 0)
        self.same(self.store.get_tensor(self.base), self.tensor)
        self.assertEqual(self.store.upsert_tensor(self.base, self.tensor + 1), 0)
        self.same(self.store.get_tensor(self.base), self.tensor + 1)

    def test_batches_of_small_and_large_tensors(self):
        sizes = (1, 100, 70000, 3000000, 1000000, 1000000, 1000000, 1000000, 1000000, 5)
        given = [torch.arange(n, dtype=torch.float32) for n in sizes]
        keys = [f"{self.base}{n}" for n in sizes]
        self.assertEqual(self.store.batch_put_tensor([*keys, "x"], [*given, None]), [0] * 10 + [-600])
        for found, expected in zip(self.store.batch_get_tensor(keys), given):
            self.same(found, expected)
        self.assertEqual(self.store.batch_upsert_tensor(keys, [tensor * 2 for tensor in given]), [0] * 10)
        for found, expected in zip(self.store.batch_get_tensor(keys), given):
            self.same(found, expected * 2)

    def test_batches_of_several_threads(self):
        failed = []

        def work(thread):
            for i in range(20):
                keys = [f"{self.base}{thread}-{i}-{k}" for k in range(8)]
                given = [self.tensor + thread + k for k in range(8)]
                codes = self.store.batch_put_tensor(keys, given)
                found = self.store.batch_get_tensor(keys)
                if codes != [0] * 8 or not all(torch.equal(a, b) for a, b in zip(found, given)):
                    failed.append((thread, i, codes))

        threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failed, [])

    def test_into_returns_a_tensor_over_the_memory(self):
        self.store.put_tensor(self.base, self.tensor)
        memory = Memory(self.store)
        found = self.store.get_tensor_into(self.base, memory.address, memory.size)
        self.same(found, self.tensor)
        self.assertEqual(found.data_ptr(), memory.address + 304)
        self.assertIsNone(self.store.get_tensor_into(self.base, memory.address, 304 + 63))
        self.assertIsNone(self.store.get_tensor_into(self.base + "-", memory.address, memory.size))

    def test_from_memory_stores_exactly_one_tensor(self):
        content = self.object(self.tensor)
        memory = Memory(self.store, content=content)
        self.assertEqual(self.store.put_tensor_from(self.base, memory.address, len(content)), 0)
        self.same(self.store.get_tensor(self.base), self.tensor)
        for size in (0, 304, len(content) - 1, len(content) + 1):
            self.assertEqual(self.store.put_tensor_from(self.base + "-", memory.address, size), -600)
        self.assertEqual(self.store.put_tensor_with_tp_from(self.base + "s", memory.address, len(content), 0, 2, 1), 0)
        self.same(self.store.get_tensor_with_tp(self.base + "s", 1, 2), self.tensor[:, 2:])

    def test_tp_shards_are_equal_parts(self):
        for split_dim in (0, 1):
            key = f"{self.base}{split_dim}"
            self.assertEqual(self.store.put_tensor_with_tp(key, self.tensor, 0, 4, split_dim), 0)
            for rank in range(4):
                self.same(self.store.get_tensor_with_tp(key, rank, 4), self.tensor.narrow(split_dim, rank, 1))
        for shards, split_dim in ((3, 0), (2, 2), (2, -1)):
            self.assertEqual(self.store.put_tensor_with_tp(self.base, self.tensor, 0, shards, split_dim), -600)

    def test_shards_are_assembled_for_another_number_of_ranks(self):
        for rank in range(4):
            shard = self.tensor.narrow(1, rank, 1).contiguous()
            self.assertEqual(self.store.put_tensor_with_parallelism(self.base, shard, axes(("tp", rank, 4, 1))), 0)
        read = self.store.get_tensor_with_parallelism
        self.same(read(self.base, target("shard", ("tp", 3, 4, 1))), self.tensor[:, 3:])
        self.same(read(self.base, target("shard", ("tp", 1, 2, 1))), self.tensor[:, 2:])
        self.same(read(self.base, target("full", ("tp", 0, 2, 1))), self.tensor)
        self.assertIsNone(read(self.base, target("full", ("tp", 0, 3, 1))))
        self.assertIsNone(read(self.base, target("full", ("tp", 0, 2, 0))))
        memory = Memory(self.store)
        found = self.store.get_tensor_with_parallelism_into(
            self.base, memory.address, memory.size, target("full", ("tp", 0, 2, 1))
        )
        self.same(found, self.tensor)
        self.assertEqual(found.data_ptr(), memory.address + 304)

    def test_writer_partitions_are_assembled(self):
        for rank in range(2):
            self.assertEqual(
                self.store.put_tensor_with_parallelism(
                    self.base, self.tensor, None, writer_partition=writer(rank, 2, 0)
                ),
                0,
            )
        self.same(self.store.get_tensor_with_parallelism(self.base, target("full")), self.tensor)
        self.same(self.store.get_tensor_with_parallelism(self.base, target("shard", ("tp", 1, 2, 0))), self.tensor[2:])

    def test_without_setup_every_method_returns_its_error(self):
        store = type(self.store)()
        memory = Memory(self.store)
        self.assertEqual(store.put_tensor("k", self.tensor), -600)
        self.assertEqual(store.batch_put_tensor(["k"], [self.tensor]), [-600])
        self.assertIsNone(store.get_tensor("k"))
        self.assertEqual(store.batch_get_tensor(["k"]), [None])
        self.assertEqual(store.batch_get_tensor_into(["k"], [memory.address], [memory.size]), [-600])
        self.assertEqual(store.put_tensor_with_parallelism("k", self.tensor, axes(("tp", 0, 2, 0))), -600)

    def test_wrong_types_raise(self):
        for call in (
            lambda: self.store.put_tensor(5, self.tensor),
            lambda: self.store.put_tensor_with_tp("k", self.tensor, 0.0),
            lambda: self.store.batch_put_tensor(["k"], (self.tensor,)),
            lambda: self.store.batch_put_tensor("k", [self.tensor]),
            lambda: self.store.get_tensor_into("k", -1, 5),
            lambda: self.store.load_tensor_from_safetensor("k"),
        ):
            self.assertRaises(TypeError, call)


class DictionaryTensors(Cases, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.store = DictionaryStore()
        cls.store.setup()


class NativeTensors(Cases, unittest.TestCase):
    """Over mcctl's native client."""

    @classmethod
    def setUpClass(cls):
        module = optional("mcctl_mooncake.store")
        if module is None:
            raise unittest.SkipTest("the native module is not built")
        cls.store = connected(module.MooncakeDistributedStore(), master_address())

    @classmethod
    def tearDownClass(cls):
        cls.store.close()


if __name__ == "__main__":
    unittest.main()
