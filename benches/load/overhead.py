#!/usr/bin/env python3
"""What a load generator itself adds, against an endpoint whose timing is known (mock.rs beside this file).

  overhead.py --mock "PATH_TO_BENCH mock" --out DIR --client NAME=PROGRAM ... [--wire generate|chat] [--concurrency 1,64,256]
              [--tokens 64] [--input 64] [--waves 3] [--ttft-ms 50] [--itl-ms 20] [--client-cpu 1] [--mock-cpu 0] [--repeat 1]

PROGRAM is what starts the client's tool; NAME picks how it is called and how its figures are read:
  sglang        a python that has sglang      (python -m sglang.benchmark.serving)
  sglang-rust   the same python               (python -m sglang.benchmark.rust_client, one worker thread)
  aiperf        the aiperf program            (chat only)
  guidellm      the guidellm program          (chat only)
  mcctl         the mcctl program             (TTFT from the last byte of the request; the lag before it is a column of its own)
  floor         "PATH_TO_BENCH floor"         (no client: what reading each token by itself costs at the least)
Needs --tokenizer DIR (any local tokenizer) for all but the last two.

One line of JSON a run goes to DIR/overhead.jsonl, and a table to stdout. The client is held to one CPU, the mock to another.
  *_err       what the client reported minus what the mock sent (its configured time plus its own measured lateness)
  cpu_us/tok  CPU time of the client's processes over the tokens they received, between 10% and 90% of all tokens: start-up
              and report are outside it. It holds on a shared machine; 1e6 / it is the tokens a second one core can take
"""
import argparse, json, os, shlex, subprocess, time, urllib.request

here = os.path.dirname(os.path.abspath(__file__))
ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
ap.add_argument("--mock", required=True)
ap.add_argument("--out", required=True)
ap.add_argument("--client", action="append", required=True)
ap.add_argument("--tokenizer", default="")
ap.add_argument("--wire", default="generate", choices=["generate", "chat"])
ap.add_argument("--concurrency", default="1,64,256")
ap.add_argument("--tokens", type=int, default=64)
ap.add_argument("--input", type=int, default=64)
ap.add_argument("--waves", type=int, default=3, help="requests = waves * concurrency")
ap.add_argument("--ttft-ms", type=float, default=50)
ap.add_argument("--itl-ms", type=float, default=20)
ap.add_argument("--client-cpu", default="1")
ap.add_argument("--mock-cpu", default="0")
ap.add_argument("--port", type=int, default=31900)
ap.add_argument("--repeat", type=int, default=1)
ap.add_argument("--limit-s", type=int, default=180)
a = ap.parse_args()
os.makedirs(a.out, exist_ok=True)
url = f"http://127.0.0.1:{a.port}"


def last_line(path):
    return json.loads(open(path).read().strip().splitlines()[-1])


def sglang_result(path):
    d = last_line(path)
    return {"completed": d["completed"], "ttft": [d["mean_ttft_ms"], d["median_ttft_ms"], d["p99_ttft_ms"]],
            "itl": [d["mean_itl_ms"], d["median_itl_ms"], d["p99_itl_ms"]], "tok_s": d["output_throughput"]}


def sglang(program, conc, n, tokens, out, module="sglang.benchmark.serving", more=()):
    f = os.path.join(out, "r.jsonl")
    cmd = [program, "-m", module, "--backend", "sglang" if a.wire == "generate" else "sglang-oai-chat", "--base-url", url,
           "--model", "mock", "--tokenizer", a.tokenizer, "--dataset-name", "random-ids", "--random-input-len", a.input,
           "--random-output-len", tokens, "--random-range-ratio", "1.0", "--num-prompts", n, "--max-concurrency", conc,
           "--warmup-requests", "1", "--disable-tqdm", "--output-file", f, *more]
    if a.wire == "generate":
        cmd.append("--tokenize-prompt")
    return cmd, lambda: sglang_result(f)


def sglang_rust(program, conc, n, tokens, out):
    return sglang(program, conc, n, tokens, out, "sglang.benchmark.rust_client", ("--worker-threads", "1"))


def aiperf(program, conc, n, tokens, out):
    cmd = [program, "profile", "--model", "mock", "--url", url, "--endpoint-type", "chat", "--streaming", "--tokenizer", "builtin",
           "--concurrency", conc, "--request-count", n, "--isl", a.input, "--osl", tokens, "--extra-inputs", "ignore_eos:true",
           "--num-dataset-entries", "16", "--ui", "none", "--artifact-dir", out, "--workers-max", "1", "--no-gpu-telemetry",
           "--no-server-metrics", "--random-seed", "1"]

    def read():
        d = json.load(open(os.path.join(out, "profile_export_aiperf.json")))
        t, i = d["time_to_first_token"], d["inter_token_latency"]
        return {"completed": d["request_count"]["avg"], "ttft": [t["avg"], t["p50"], t["p99"]], "itl": [i["avg"], i["p50"], i["p99"]],
                "tok_s": d["output_token_throughput"]["avg"]}
    return cmd, read


def guidellm(program, conc, n, tokens, out):
    cmd = [program, "run", "--backend", f"kind=openai_http,target={url},model=mock", "--profile", f"kind=concurrent,streams={conc}",
           "--constraint", f"kind=max_requests,count={n}", "--tokenizer", f"kind=hf_auto,model={a.tokenizer}",
           "--data", f"kind=synthetic_text,prompt_tokens={a.input},output_tokens={tokens}", "--output", f"kind=json,path={out}/r.json",
           "--disable-console"]

    def read():
        m = json.load(open(os.path.join(out, "r.json")))["benchmarks"][0]["metrics"]
        def three(k):
            s = m[k]["successful"]
            return [s["mean"], s["median"], s["percentiles"]["p99"]]
        return {"completed": m["request_totals"]["successful"], "ttft": three("time_to_first_token_ms"),
                "itl": three("inter_token_latency_ms"), "tok_s": m["output_tokens_per_second"]["successful"]["mean"]}
    return cmd, read


def mcctl(program, conc, n, tokens, out):
    f = os.path.join(out, "r.json")
    cmd = [*shlex.split(program), "bench", "multi-turn", "--url", url, "--api", a.wire, "--clients", n, "--turns", 1,
           "--input-tokens", a.input, "--output-tokens", tokens, "--request-rate", "inf", "--max-parallel", conc, "--json", f]

    def read():
        d = json.load(open(f))["passes"][0]
        pick = lambda k: [d[k]["mean_ms"], d[k]["p50_ms"], d[k]["p99_ms"] or d[k]["max_ms"]]
        # Counted from the last byte of the request; how late that left is beside it.
        return {"completed": d["completed"], "ttft": pick("ttft_from_send"), "itl": pick("itl"), "tok_s": d["output_tokens_per_s"],
                "lag": pick("lag")}
    return cmd, read


def floor(program, conc, n, tokens, out):
    cmd = [*shlex.split(program), "--port", a.port, "--api", a.wire, "--streams", conc, "--waves", a.waves, "--tokens", tokens]
    return cmd, lambda: last_line(os.path.join(out, "log"))


kinds = {"sglang": sglang, "sglang-rust": sglang_rust, "aiperf": aiperf, "guidellm": guidellm, "mcctl": mcctl, "floor": floor}


def get(path):
    return json.loads(urllib.request.urlopen(url + path, timeout=10).read())


def tree_cpu(root):
    """CPU seconds of a process and all below it."""
    stat = {}
    for p in os.listdir("/proc"):
        if p.isdigit():
            try:
                f = open(f"/proc/{p}/stat").read().rsplit(")", 1)[1].split()
            except OSError:
                continue
            stat[int(p)] = (int(f[1]), int(f[11]) + int(f[12]))
    total, todo = 0, [root]
    while todo:
        p = todo.pop()
        total += stat.get(p, (0, 0))[1]
        todo += [c for c, (parent, _) in stat.items() if parent == p]
    return total / os.sysconf("SC_CLK_TCK")


def run(kind, program, conc, n, tokens, tag):
    out = os.path.join(a.out, tag)
    os.makedirs(out, exist_ok=True)
    for f in ("r.json", "r.jsonl"):
        if os.path.exists(os.path.join(out, f)):
            os.remove(os.path.join(out, f))
    cmd, read = kinds[kind](program, conc, n, tokens, out)
    env = dict(os.environ, HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    mock = subprocess.Popen(["taskset", "-c", a.mock_cpu, *shlex.split(a.mock), "--port", str(a.port), "--ttft-ms", str(a.ttft_ms), "--itl-ms", str(a.itl_ms)],
                            stdout=subprocess.PIPE, text=True)
    try:
        assert mock.stdout.readline().startswith("READY")
        t0, polls = time.monotonic(), []
        with open(os.path.join(out, "log"), "w") as log:
            p = subprocess.Popen(["taskset", "-c", a.client_cpu, *map(str, cmd)], stdout=log, stderr=log, env=env)
            while p.poll() is None:
                if time.monotonic() - t0 > a.limit_s:
                    p.kill()
                    p.wait()
                    return {"error": f"past {a.limit_s} s"}
                polls.append((get("/mock/stats")["tokens"], tree_cpu(p.pid)))
                time.sleep(0.1)
        stats = get("/mock/stats")
        if p.returncode:
            return {"error": f"exit {p.returncode}, see {out}/log", "mock": stats}
        inside = [x for x in polls if 0.1 * stats["tokens"] <= x[0] <= 0.9 * stats["tokens"]]
        per = (inside[-1][1] - inside[0][1]) * 1e6 / (inside[-1][0] - inside[0][0]) if len(inside) > 1 and inside[-1][0] > inside[0][0] else None
        return {"cpu_us_per_token": per, "wall_s": time.monotonic() - t0, "mock": stats, **read()}
    finally:
        mock.kill()
        mock.wait()


print("| client | wire | streams | requests | tok/s | TTFT err mean | p99 | ITL err mean | p99 | cpu us/tok | mock late p99 | lag mean / p99 |\n|---|---|---|---|---|---|---|---|---|---|---|---|")
for spec in a.client:
    kind, _, program = spec.partition("=")
    for conc in map(int, a.concurrency.split(",")):
        for rep in range(a.repeat):
            n = max(conc * a.waves, 3)
            r = run(kind, program, conc, n, a.tokens, f"{kind}-{a.wire}-{conc}")
            row = {"client": kind, "wire": a.wire, "streams": conc, "requests": n, "tokens": a.tokens, "ttft_ms": a.ttft_ms, "itl_ms": a.itl_ms,
                   "load_1m": os.getloadavg()[0], **r}
            if "error" not in r:
                errors = ["-"] * 4
                if "ttft" in r:
                    first = r["mock"]["first_late_us"]
                    row["ttft_err_ms"] = [r["ttft"][0] - a.ttft_ms - first["mean"] / 1e3, r["ttft"][2] - a.ttft_ms - first["p99"] / 1e3]
                    row["itl_err_ms"] = [r["itl"][0] - a.itl_ms, r["itl"][2] - a.itl_ms]
                    errors = [f"{ms:.1f}" for ms in row["ttft_err_ms"]] + [f"{row['itl_err_ms'][0]:.2f}", f"{row['itl_err_ms'][1]:.1f}"]
                lag = "{:.1f} / {:.1f}".format(r["lag"][0], r["lag"][2]) if "lag" in r else "-"
                cells = [kind, a.wire, conc, f"{int(r['completed'])}/{n}", f"{r['tok_s']:.0f}", *errors, f"{row['cpu_us_per_token']:.1f}" if row["cpu_us_per_token"] else "-",
                         f"{r['mock']['token_late_us']['p99'] / 1e3:.1f}", lag]
                print("| " + " | ".join(map(str, cells)) + " |", flush=True)
            else:
                print(f"| {kind} | {a.wire} | {conc} | {r['error']} |", flush=True)
            with open(os.path.join(a.out, "overhead.jsonl"), "a") as f:
                f.write(json.dumps(row) + "\n")
