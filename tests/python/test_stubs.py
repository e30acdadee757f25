"""Compares the type stubs and the Python methods with the recorded API of the real module (api-0.3.13.json).

python -m unittest tests/python/test_stubs.py
"""

import ast
import importlib
import inspect
import os
import re
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(HERE, "..", "..", "src", "python", "mcctl_mooncake")
sys.path[:0] = [HERE, os.path.dirname(PACKAGE)]
from cases import API, STORE, arguments  # noqa: E402
from mcctl_mooncake import buffer_pool, enums, parallelism, tensors, unsupported  # noqa: E402


def recorded(signatures):
    """[[(name or None, default or None)]] of the overloads. A name such as arg0 is None: the argument is positional."""
    found = []
    for signature in signatures:
        text = signature[signature.index("(") : signature.rindex(")") + 1]
        one = []
        for name, _, has_default in arguments(signature):
            default = None
            if has_default:
                default = re.search(rf"\b{name}: [^=]*? = (\w+\(\)|'[^']*'|[^,)]+)", text)[1].strip("'")
            one.append((None if re.fullmatch(r"arg\d+", name) else name, default))
        found.append(one)
    return found


def value(node):
    if isinstance(node, ast.Constant):
        return "..." if node.value is ... else str(node.value)
    return ast.unparse(node)


def declared(function):
    """[(name or None, default or None)] of a function in a stub."""
    given = function.args
    every = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(every) - len(given.defaults)) + [value(node) for node in given.defaults]
    names = [(None if arg in given.posonlyargs else arg.arg, default) for arg, default in zip(every, defaults)]
    keywords = [
        (arg.arg, None if node is None else value(node)) for arg, node in zip(given.kwonlyargs, given.kw_defaults)
    ]
    if every and every[0].arg == "self":
        names = names[1:]
    return names + keywords


class Stubs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.classes, cls.functions, cls.names = {}, {}, set()
        cls.parse("enums.py")
        cls.parse("store.pyi")

    @classmethod
    def parse(cls, name):
        with open(os.path.join(PACKAGE, name)) as f:
            tree = ast.parse(f.read())
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                cls.classes[node.name] = cls.members(node)
            elif isinstance(node, ast.FunctionDef):
                cls.functions[node.name] = [node]
            elif isinstance(node, ast.Assign):
                cls.classes[node.targets[0].id] = cls.classes[node.value.id]
            elif isinstance(node, ast.AnnAssign):
                cls.names.add(node.target.id)

    @staticmethod
    def members(node):
        found = {}
        for each in node.body:
            if isinstance(each, ast.FunctionDef):
                found.setdefault(each.name, []).append(each)
            elif isinstance(each, ast.AnnAssign):
                found[each.target.id] = "attribute"
            elif isinstance(each, ast.Assign):
                # `other = one` in the stub: the same arguments.
                found[each.targets[0].id] = found.get(ast.unparse(each.value), "attribute")
        return found

    def compare(self, where, signatures, functions):
        found = [declared(function) for function in functions]
        self.assertEqual(len(found), len(signatures), where)
        for ours, real in zip(found, recorded(signatures)):
            self.assertEqual([name for name, _ in ours], [name for name, _ in real], where)
            for (name, default), (_, expected) in zip(ours, real):
                if (where, name) == ("MooncakeDistributedStore.load_tensor_from_safetensor", "file_name"):
                    # The real argument has no default, and follows one that has.
                    continue
                self.assertEqual("..." if expected == "ReplicateConfig()" else expected, default, f"{where} {name}")

    def test_the_store_stub_has_every_name_with_the_same_arguments(self):
        for name, members in API["classes"].items():
            self.assertIn(name, self.classes)
            for member, real in members.items():
                where = f"{name}.{member}"
                if member in ("name", "value") and "name" in members:
                    continue
                if member == "__init__" and (not real or "name" in members):
                    continue
                ours = self.classes[name].get(member)
                self.assertIsNotNone(ours, where)
                if real == "attribute":
                    is_property = isinstance(ours, list) and ours[0].decorator_list
                    self.assertTrue(ours == "attribute" or is_property, where)
                else:
                    self.compare(where, real, ours)
        for name, real in API["functions"].items():
            self.compare(name, real, self.functions[name])

    def test_the_store_stub_has_no_other_methods(self):
        extra = set(self.classes["MooncakeDistributedStore"]) - set(STORE)
        self.assertEqual(extra, {"metrics"})

    def test_every_tensor_method_has_the_same_arguments_and_a_docstring(self):
        for name in sorted(name for name in STORE if "tensor" in name):
            method = getattr(tensors.TensorMethods, name)
            self.assertTrue(method.__doc__, name)
            self.same_arguments(name, STORE[name], method)

    def same_arguments(self, where, signatures, function):
        ours = [one for one in inspect.signature(function).parameters.values() if one.name != "self"]
        self.assertEqual([one.name for one in ours], [name for name, _ in recorded(signatures)[0]], where)
        for one, (_, default) in zip(ours, recorded(signatures)[0]):
            if default is None:
                self.assertTrue(one.default is one.empty or where.endswith("load_tensor_from_safetensor"), where)
            elif default != "ReplicateConfig()":
                self.assertEqual(str(one.default), default, where)

    def test_the_pool_has_the_same_arguments_and_docstrings(self):
        for kind in (buffer_pool.BufferPool, buffer_pool.BufferLease):
            self.assertTrue(kind.__doc__)
            for name, real in API["classes"][kind.__name__].items():
                if isinstance(real, list) and real:
                    self.same_arguments(f"{kind.__name__}.{name}", real, getattr(kind, name))
                if name != "__init__":
                    self.assertTrue(getattr(kind, name).__doc__, name)

    def test_the_python_classes_have_the_recorded_fields(self):
        for kind in (parallelism.ParallelAxis, parallelism.TensorParallelism, parallelism.ReadTarget):
            one, real = kind(), API["classes"][kind.__name__]
            for name in real:
                self.assertTrue(hasattr(one, name), f"{kind.__name__}.{name}")
            self.assertRaises(AttributeError, setattr, one, "other", 1)
        for name in ("ReplicaStatus", "ObjectDataType", "SoftPinAction", "TaskType", "TaskStatus"):
            real = {member for member in API["classes"][name] if member.isupper()}
            self.assertEqual(set(getattr(enums, name).__members__), real)

    def test_unsupported_names_raise_with_a_text(self):
        for call in (
            lambda: unsupported.EngramStore(0, unsupported.EngramStoreConfig()),
            unsupported.MooncakeDistributedNoFRegister,
            lambda: unsupported._get_pyclient_from_wrapper(None),
            unsupported.get_alloc_func_addr,
            unsupported.get_free_func_addr,
        ):
            with self.assertRaises(NotImplementedError) as raised:
                call()
            self.assertIn("not ", str(raised.exception))

    def test_the_package_needs_neither_torch_nor_numpy(self):
        for path in os.listdir(PACKAGE):
            if path.endswith(".py"):
                with open(os.path.join(PACKAGE, path)) as f:
                    for node in ast.parse(f.read()).body:
                        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
                        # The backend class is a subclass of SGLang's, and is loaded only by SGLang.
            allowed = set(sys.stdlib_module_names) | ({"sglang"} if path == "sglang.py" else set())
            self.assertLessEqual({name.split(".")[0] for name in names}, allowed, path)

    def test_the_native_module_has_every_name(self):
        try:
            store = importlib.import_module("mcctl_mooncake.store")
        except ImportError as error:
            raise unittest.SkipTest("the native module is not built") from error
        for name in (*API["classes"], *API["functions"], *self.names):
            self.assertTrue(hasattr(store, name), name)
        for name in STORE:
            method = getattr(store.MooncakeDistributedStore, name, None)
            self.assertIsNotNone(method, name)
            if not name.startswith("__"):
                self.assertTrue(method.__doc__, name)


if __name__ == "__main__":
    unittest.main()
