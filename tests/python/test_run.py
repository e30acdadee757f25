"""Tests of `python -m mcctl_mooncake.run`. They need neither Mooncake's wheel nor the native module."""

import importlib.util
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from stand_ins import client, python, wheel, write  # noqa: E402

HAS_WHEEL = importlib.util.find_spec("mooncake") is not None
WHICH = "import mooncake.store as s; print(s.IS_FAKE, s.__name__)"
OURS = "True mcctl_mooncake.store\n"
CHILD = "def which(queue):\n    import mooncake.store\n    queue.put(mooncake.store.IS_FAKE)\n"
SPAWN = """
import multiprocessing as mp, sys
from child import which
if __name__ == "__main__":
    context = mp.get_context(sys.argv[1])
    queue = context.SimpleQueue()
    process = context.Process(target=which, args=(queue,))
    process.start()
    print(queue.get())
    process.join()
"""


class RunCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="mcctl-run.")
        self.addCleanup(folder.cleanup)
        self.folder = os.path.realpath(folder.name)
        self.client = client(os.path.join(self.folder, "client"))
        self.wheel = wheel(os.path.join(self.folder, "wheel"))

    def launch(self, *command, path=None, options=(), **kw):
        path = (self.client, self.wheel) if path is None else path
        return python(*options, "-m", "mcctl_mooncake.run", *command, path=path, cwd=kw.pop("cwd", self.folder), **kw)

    def output(self, *command, **kw):
        done = self.launch("--", *command, **kw)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        return done.stdout

    def file(self, name, text, executable=False):
        write(self.folder, {name: text})
        path = os.path.join(self.folder, name)
        if executable:
            os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        return path


class Redirection(RunCase):
    def test_code_module_and_script_get_the_store(self):
        self.file("which.py", WHICH)
        self.assertEqual(self.output("-c", WHICH), OURS)
        self.assertEqual(self.output("-m", "which"), OURS)
        self.assertEqual(self.output("which.py"), OURS)

    def test_all_import_forms_give_one_module(self):
        code = (
            "from mooncake import store; import mooncake.store as b; import importlib, mcctl_mooncake.store as c\n"
            "from mooncake.store import IS_FAKE\n"
            "print(store is b is c, importlib.import_module('mooncake.store') is c, IS_FAKE)"
        )
        self.assertEqual(self.output("-c", code), "True True True\n")
        code = (
            "import importlib.util as u, mcctl_mooncake as p\n"
            "print(u.find_spec('mooncake.store').origin.startswith(p.__path__[0]))"
        )
        self.assertEqual(self.output("-c", code), "True\n")

    def test_other_modules_of_the_wheel_stay_reachable(self):
        code = "import mooncake.engine, mooncake.service; print(mooncake.engine.NAME, mooncake.service.IS_FAKE)"
        self.assertEqual(self.output("-c", code), "the engine of the wheel True\n")

    @unittest.skipIf(HAS_WHEEL, "this interpreter has the wheel")
    def test_the_wheel_is_not_required(self):
        self.assertEqual(self.output("-c", WHICH, path=(self.client,)), OURS)
        code = "from mooncake import store; print(store.IS_FAKE)"
        self.assertEqual(self.output("-c", code, path=(self.client,)), "True\n")

    @unittest.skipIf(HAS_WHEEL, "this interpreter has the wheel")
    def test_without_the_wheel_other_modules_are_not_found(self):
        code = (
            "try:\n    import mooncake.engine\nexcept ModuleNotFoundError as e:\n"
            "    print(e.name, 'mooncake-transfer-engine' in str(e))"
        )
        self.assertEqual(self.output("-c", code, path=(self.client,)), "mooncake.engine True\n")
        code = "import mooncake\ntry:\n    mooncake.engine\nexcept AttributeError as e:\n    print('missing')"
        self.assertEqual(self.output("-c", code, path=(self.client,)), "missing\n")

    def test_a_client_that_cannot_be_loaded_is_an_error(self):
        broken = client(os.path.join(self.folder, "broken"), store="import mcctl_mooncake.native_part\n")
        done = self.launch("--", "-c", WHICH, path=(broken, self.wheel))
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot load mcctl_mooncake.store, which replaces mooncake.store", done.stderr)
        self.assertIn("native_part", done.stderr)

    def test_a_process_outside_keeps_the_wheel(self):
        done = python("-c", WHICH, path=(self.client, self.wheel))
        self.assertEqual(done.stdout, "False mooncake.store\n")


class Children(RunCase):
    def test_multiprocessing_children_get_the_store(self):
        self.file("child.py", CHILD)
        self.file("spawn.py", SPAWN)
        for method in ("spawn", "fork", "forkserver"):
            with self.subTest(method):
                self.assertEqual(self.output("spawn.py", method), "True\n")

    def test_subprocesses_and_their_children_get_the_store(self):
        inner = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WHICH!r}], check=True)"
        outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}], check=True)"
        self.assertEqual(self.output("-c", outer), OURS)

    def test_asyncio_subprocesses_get_the_store(self):
        code = (
            "import asyncio, sys\ntry:\n    from uvloop import run\nexcept ImportError:\n    from asyncio import run\n"
            "async def main():\n"
            f"    child = await asyncio.create_subprocess_exec(sys.executable, '-c', {WHICH!r}, stdout=-1)\n"
            "    print((await child.communicate())[0].decode(), end='')\nrun(main())"
        )
        self.assertEqual(self.output("-c", code), OURS)

    def test_a_child_without_the_environment_is_not_reached(self):
        code = (
            "import subprocess, sys\n"
            f"subprocess.run([sys.executable, '-c', {WHICH!r}], env={{'PYTHONPATH': {self.wheel!r}}})"
        )
        self.assertEqual(self.output("-c", code), "False mooncake.store\n")

    def test_a_child_finds_the_package_without_its_folder_on_sys_path(self):
        code = (
            "import os, subprocess, sys; e = dict(os.environ)\n"
            "e['PYTHONPATH'] = e['PYTHONPATH'].split(os.pathsep)[0]\n"
            f"subprocess.run([sys.executable, '-c', {WHICH!r}], env=e)"
        )
        self.assertEqual(self.output("-c", code), OURS)


class Faithfulness(RunCase):
    PROBE = (
        "import json, sys, os, __main__\n"
        "print(json.dumps([sys.argv, sys.path, __name__, getattr(__main__, '__file__', None), sys.stdin.closed,"
        " 'sitecustomize' in sys.modules]))"
    )

    def test_argv_path_and_main_are_as_without_the_launcher(self):
        self.file("sub/probe.py", self.PROBE)
        self.file("sub/folder/__main__.py", self.PROBE)
        for command in (
            ["-c", self.PROBE, "a", "--check"],
            ["-m", "sub.probe", "--", "b"],
            ["sub/probe.py", "-x"],
            ["sub/folder", "c"],
        ):
            with self.subTest(command[0]):
                plain = python(*command, path=(self.client, self.wheel), cwd=self.folder)
                self.assertEqual(plain.returncode, 0, plain.stderr)
                self.assertEqual(json.loads(self.output(*command)), json.loads(plain.stdout))

    def test_options_of_the_interpreter_are_passed_on(self):
        code = "import sys; print(sys.flags.optimize, sys.flags.dev_mode, sys.stdout.write_through)"
        self.assertEqual(self.output("-O", "-X", "dev", "-c", code), "1 True False\n")
        self.assertEqual(self.output("-c", code, options=("-u", "-O")), "1 False True\n")

    def test_exit_status_and_signals_are_those_of_the_program(self):
        self.assertEqual(self.launch("--", "-c", "raise SystemExit(37)").returncode, 37)
        self.assertEqual(
            self.launch("--", "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)").returncode,
            -signal.SIGKILL,
        )
        code = (
            "import os, signal, time; signal.signal(signal.SIGTERM, lambda *_: os._exit(9))\n"
            "print(os.getpid(), flush=True); time.sleep(20)"
        )
        env = dict(os.environ, PYTHONPATH=self.client)
        with subprocess.Popen(
            [sys.executable, "-m", "mcctl_mooncake.run", "--", "-c", code], env=env, stdout=subprocess.PIPE
        ) as child:
            self.assertEqual(int(child.stdout.readline()), child.pid)
            child.send_signal(signal.SIGTERM)
            self.assertEqual(child.wait(10), 9)

    def test_a_hidden_sitecustomize_runs(self):
        other = write(
            os.path.join(self.folder, "other"),
            {"sitecustomize.py": "import sys; sys.ran_site = sys.path[0] if sys.path else ''\nNAME = 'other'\n"},
        )
        code = (
            "import sys, sitecustomize, mooncake.store\n"
            "print(bool(sys.ran_site), sitecustomize.NAME, mooncake.store.IS_FAKE)"
        )
        self.assertEqual(self.output("-c", code, path=(self.client, other)), "True other True\n")

    def test_a_failing_sitecustomize_is_reported_as_without_the_launcher(self):
        other = write(
            os.path.join(self.folder, "other"), {"sitecustomize.py": "raise RuntimeError('broken customization')\n"}
        )
        done = self.launch("--", "-c", WHICH, path=(self.client, other))
        self.assertEqual((done.returncode, done.stdout), (0, OURS))
        self.assertIn("broken customization", done.stderr)

    def test_pythonpath_keeps_its_entries_and_gets_one_more(self):
        code = "import os; print(os.environ['PYTHONPATH'])"
        nested = ("-m", "mcctl_mooncake.run", "--", "-c", code)
        for command in (("-c", code), nested):
            first, *rest = self.output(*command, path=(self.client, self.wheel, "")).rstrip("\n").split(os.pathsep)
            self.assertEqual(os.path.basename(first), "_site")
            self.assertEqual(rest, [self.client, self.wheel, ""])
        # An empty value does not become the current directory.
        code = (
            "import os, sys; sys.path.insert(0, sys.argv[1]); from mcctl_mooncake.run import environment as e; "
            "print(e({'PYTHONPATH': ''})['PYTHONPATH'].count(os.pathsep), e({})['PYTHONPATH'].count(os.pathsep))"
        )
        self.assertEqual(python("-c", code, self.client).stdout, "0 0\n")

    def test_the_variable_that_is_set_stays(self):
        code = "import os; print(os.environ['SGLANG_HICACHE_MOONCAKE_REUSE_TE'])"
        self.assertEqual(self.output("-c", code), "false\n")
        self.assertEqual(self.output("-c", code, env={"SGLANG_HICACHE_MOONCAKE_REUSE_TE": "1"}), "1\n")


class Programs(RunCase):
    def test_a_console_script_on_path_gets_the_store(self):
        self.file("bin/serve", f"#!{sys.executable}\nimport sys\n{WHICH}\nprint(sys.argv[1:])\n", executable=True)
        path = os.path.join(self.folder, "bin") + os.pathsep + os.environ["PATH"]
        self.assertEqual(self.output("serve", "--check", "x", env={"PATH": path}), OURS + "['--check', 'x']\n")
        self.assertEqual(self.output("bin/serve"), OURS + "[]\n")

    def test_programs_that_cannot_run_have_the_codes_of_a_shell(self):
        self.file("data", "no program")
        missing = self.launch("--", "mcctl-no-such-program")
        self.assertEqual((missing.returncode, missing.stdout), (127, ""))
        self.assertIn("mcctl-no-such-program: program not found", missing.stderr)
        self.assertEqual(self.launch("--", "./data").returncode, 126)

    def test_usage_errors_exit_with_2(self):
        for command in (
            [],
            ["--"],
            ["-m", "sglang"],
            ["--chekc"],
            ["--", "-I", "-c", "1"],
            ["--", "-BE", "-m", "x"],
            ["--", "-S", "x.py"],
        ):
            with self.subTest(command):
                done = self.launch(*command)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertTrue(done.stderr.startswith("error: "), done.stderr)
        self.assertEqual(self.launch("--help").returncode, 0)

    def test_options_after_the_module_belong_to_the_program(self):
        code = "import sys; print(sys.argv[1:])"
        self.assertEqual(self.output("-c", code, "-I", "-E"), "['-I', '-E']\n")
        self.assertEqual(self.output("-W", "ignore", "-c", code, "-S"), "['-S']\n")


class Check(RunCase):
    def test_it_prints_the_files_of_a_child_process(self):
        done = self.launch("--check")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        store = os.path.join(self.client, "mcctl_mooncake", "store.py")
        self.assertIn(f"mooncake.store   {store} (mcctl_mooncake.store)\n", done.stdout)
        self.assertIn(os.path.join(self.wheel, "mooncake", "engine.py"), done.stdout)
        if not HAS_WHEEL:
            self.assertIn("not installed", self.launch("--check", path=(self.client,)).stdout)

    def test_it_checks_the_interpreter_of_a_console_script(self):
        self.file("bin/serve", f"#!{sys.executable}\n", executable=True)
        done = self.launch("--check", "--", "bin/serve", "MODEL")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn(f"interpreter      {sys.executable}\n", done.stdout)

    def test_a_client_that_cannot_be_loaded_exits_with_1(self):
        broken = client(os.path.join(self.folder, "broken"), store=None)
        done = self.launch("--check", path=(broken, self.wheel))
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("mooncake.store cannot be imported", done.stderr)


if __name__ == "__main__":
    unittest.main()
