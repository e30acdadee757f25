#!/usr/bin/env python3
"""A real SGLang 0.5.23 with HiCache, whose third tier is mcctl, and whose master is restarted in the middle.

  sglang_restart.py --binary MCCTL [--prompts 6] [--signals KILL,TERM] [--node own|wheel|both] [--wait 600] [--json FILE] [--no-restart]

Prompts are served cold, then again after the first two tiers were emptied: their pages come from the third tier. Then the master is restarted
while other requests run, the first two tiers are emptied again, and the same prompts are served again. Shows, for each prompt, how many of
its tokens came from the third tier before and after the restart. They must be the same, the output must be the same, and no request may fail.
`--no-restart` checks only that the endpoint starts and that the third tier is used.
Exit code: 0 all as expected, 1 not, 3 SGLang cannot be installed or started.
"""
import argparse, json, os, random, sys, threading, time, urllib.error

import common
from common import Agent, Result, log

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(common.HERE)), "tests", "peers"))
import sglang_on_mcctl  # noqa: E402
from sglang_on_mcctl import get, post, stop, wait  # noqa: E402

TOKENS = 768


class Sglang:
    def __init__(self, url):
        self.url, self.failed, self.requests = url, [], 0

    def generate(self, ids, new=8):
        self.requests += 1
        try:
            d = json.loads(post(self.url + "/generate", dict(input_ids=ids, sampling_params=dict(temperature=0, max_new_tokens=new, ignore_eos=True))))
            return d["output_ids"], (d["meta_info"].get("cached_tokens_details") or {}).get("storage", 0)
        except (OSError, ValueError, KeyError) as error:
            self.failed.append(f"{time.strftime('%H:%M:%S')} {type(error).__name__}: {error}")
            return None, 0

    def flush(self):
        """empties the first two tiers; SGLang refuses while it is writing back"""
        def once():
            try:
                return "flush" in get(self.url + "/flush_cache?timeout=20", 40).lower()
            except urllib.error.HTTPError:
                return False
        wait("the caches to be flushed", 60, once)


def prompt(seed, length=TOKENS):
    r = random.Random(seed)
    return [r.randrange(10, 250) for _ in range(length)]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--binary", required=True)
    ap.add_argument("--prompts", type=int, default=6)
    ap.add_argument("--signals", default="KILL,TERM")
    ap.add_argument("--node", default="own", choices=("own", "wheel", "both"), help="whose memory the third tier is")
    ap.add_argument("--fsync", default="interval")
    ap.add_argument("--wait", type=int, default=600, help="seconds for SGLang's start")
    ap.add_argument("--no-restart", action="store_true")
    ap.add_argument("--no-data-dir", action="store_true")
    ap.add_argument("--dir")
    ap.add_argument("--json")
    args = ap.parse_args()
    result = Result(args.json, args.binary, args)
    root = common.folder(args.dir, "mcctl-sglang.")
    stack = sglang_on_mcctl.Stack(os.path.abspath(args.binary), root, "256mb")
    if not args.no_data_dir:
        stack.master_command += common.data_flags(os.path.join(root, "data"), args.fsync)
    problems, rows = [], []
    with stack:
        agent = None
        if args.node != "own":
            class Address:
                address = stack.master_address
            agent = Agent(root, "wheel-node", Address, 256 << 20, 16 << 20)
            if args.node == "wheel":
                stop(stack.started.pop())
        t = time.monotonic()
        stack.start_sglang(args.wait)
        log(f"SGLang answers after {time.monotonic() - t:.0f} s")
        result.save(sglang_start_s=round(time.monotonic() - t, 1))
        s = Sglang(stack.sglang_url)
        prompts = [prompt(n) for n in range(args.prompts)]
        cold = [s.generate(ids)[0] for ids in prompts]
        time.sleep(5)  # the pages are written in the background

        def again():
            s.flush()
            return [s.generate(ids) for ids in prompts]
        before = again()
        log(f"tokens from the third tier: {[n for _, n in before]}")
        if not all(n for _, n in before):
            problems.append(f"not all prompts hit the third tier before the restart: {[n for _, n in before]}")
        for how in () if args.no_restart else args.signals.split(","):
            running = threading.Event()
            running.set()

            def others():
                n = 0
                while running.is_set():
                    n += 1
                    # new prompts, and known ones that are in no tier of SGLang's own
                    s.generate(prompt(1000 * len(rows) + 10_000 + n) if n % 2 else prompts[n % len(prompts)])
            background = threading.Thread(target=others)
            background.start()
            time.sleep(2)
            t = time.monotonic()
            stop(stack.master, common.SIGNALS[how])
            stack.start_master()
            wait("the master", 30, lambda: get(f"http://127.0.0.1:{stack.admin}/health"))
            down = time.monotonic() - t
            time.sleep(4)
            running.clear()
            background.join(300)
            time.sleep(3)
            after = again()
            row = dict(signal=how, down_s=round(down, 3), before=[n for _, n in before], after=[n for _, n in after],
                       same_output=[a == b for (a, _), b in zip(after, cold)], requests=s.requests, failed=list(s.failed))
            rows.append(row)
            log(f"{how}: away for {down:.2f} s; tokens from the third tier after it: {row['after']}; {s.requests} requests, {len(s.failed)} failed")
            if row["after"] != row["before"]:
                problems.append(f"{how}: tokens from the third tier: {row['before']} before, {row['after']} after")
            if not all(row["same_output"]):
                problems.append(f"{how}: another output than before")
            result.save(restarts=rows, problems=problems)
        if s.failed:
            problems.append(f"{len(s.failed)} of {s.requests} requests failed: {s.failed[:3]}")
        if agent:
            agent.process.stop()
    result.save(restarts=rows, problems=problems, requests=s.requests)
    for p in problems:
        print(f"FAILED {p}")
    print("failed" if problems else f"ok: {s.requests} requests, none failed")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
