"""The suite of the wheel's client (tests/peers/client_suite.py) with mcctl's client, through the launcher.

  MCCTL=PROGRAM python -m unittest tests/python/test_suite.py
"""

import importlib.util
import os
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
PEERS, SOURCES = (os.path.join(HERE, "..", *path) for path in (["peers"], ["..", "src", "python"]))
sys.path.insert(0, HERE)
from servers import master, node  # noqa: E402


@unittest.skipUnless(importlib.util.find_spec("numpy"), "the suite needs numpy")
@unittest.skipUnless(os.environ.get("MCCTL"), "MCCTL names no program")
class Suite(unittest.TestCase):
    def run_suite(self, **variables):
        address = self.enterContext(master(os.environ["MCCTL"]))
        for _ in range(2):
            self.enterContext(node(os.environ["MCCTL"], address, size="512mb"))
        command = [sys.executable, "-m", "mcctl_mooncake.run", "--", os.path.join(PEERS, "client_suite.py")]
        command += ["--master", address, "--nodes", "2", "--batch", "32", "--largest", str(16 << 20)]
        env = dict(os.environ, PYTHONPATH=SOURCES, MCCTL_LOG="off", **variables)
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=180)
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-2000:])
        self.assertIn(" passed, 0 failed", done.stdout)

    def test_every_check_passes_over_shared_memory(self):
        self.run_suite()

    def test_every_check_passes_over_tcp(self):
        self.run_suite(MCCTL_SHARED_MEMORY="0")


if __name__ == "__main__":
    unittest.main()
