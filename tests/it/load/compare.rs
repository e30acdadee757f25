//! Two servers beside each other, goals, sweeps and presets, through the built binary.

use std::time::Duration;

use serde_json::{Value, json};

use mcctl::engine::base::HostPort;
use mcctl::engine::env::RealEnv;
use mcctl::engine::sim::{self, Config, Cost, RunningSimulator};

use super::server::{Behaviour, RequestBodies, serve_and_record};
use crate::cli::{Run, command, finish, mcctl};
use crate::schemas::is_as_described;

/// A server whose answers have `tokens` tokens, the first after `first` ms.
struct Server {
    runtime: tokio::runtime::Runtime,
    heard: RequestBodies,
    url: String,
}

impl Server {
    fn start(tokens: u32, first: u64) -> Server {
        Server::of(move |_| Behaviour::Answer(tokens, Duration::from_millis(first), Duration::from_millis(2)))
    }

    fn of(behaviour: impl Fn(usize) -> Behaviour + Send + Sync + 'static) -> Server {
        let runtime = tokio::runtime::Runtime::new().expect("threads");
        let heard = RequestBodies::default();
        let port = runtime.block_on(serve_and_record(behaviour, heard.clone()));
        Server { runtime, heard, url: format!("http://127.0.0.1:{port}") }
    }

    /// The prompts that were asked of it since, in the order of their bytes.
    fn heard(self) -> Vec<Vec<u8>> {
        let mut heard = std::mem::take(&mut *self.heard.lock().expect("lock is not poisoned"));
        self.runtime.shutdown_background();
        heard.sort();
        heard
    }
}

/// A server and a faster one. They differ by more than a busy machine delays an answer. An answer
/// has one token, because the gap between two would be that of the machine.
fn slow() -> Server {
    Server::start(1, 1_000)
}

fn fast() -> Server {
    Server::start(1, 0)
}

/// Twelve conversations of two turns in four blocks.
const SMALL: [&str; 9] = [
    "--num-clients=12",
    "--num-rounds=2",
    "--request-length=20",
    "--output-length=3",
    "--request-rate=inf",
    "--blocks=4",
    "--lag-limit=1h",
    "--no-server-calls",
    "--json",
];

fn bench(words: &[&str], args: &[&str]) -> (Run, Value) {
    bench_with(&SMALL, words, args)
}

fn bench_with(small: &[&str], words: &[&str], args: &[&str]) -> (Run, Value) {
    let run = finish(command(&[&["bench"], words, small, args].concat()).output().expect("the program starts"));
    let told = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"));
    is_as_described(&told);
    (run, told)
}

fn verdict_of<'a>(told: &'a Value, measure: &str) -> &'a Value {
    verdict_in(&told["comparison"]["compared"][0], measure)
}

fn verdict_in<'a>(compared: &'a Value, measure: &str) -> &'a Value {
    let differences = compared["differences"].as_array().expect("a list");
    &differences.iter().find(|one| one["measure"] == measure).expect("it is compared")["verdict"]
}

#[test]
fn two_servers_are_compared_by_ttft_on_the_same_requests() {
    let slow = slow();
    let fast = fast();
    let (run, told) = bench(&["compare", &slow.url, &fast.url], &["--num-rounds=1"]);
    assert_eq!(run.code, 0, "{run:?}");
    assert_eq!(told["comparison"]["verdict"], "better", "{run:?}");
    assert_eq!(verdict_of(&told, "ttft_ms"), "better");
    let compared = &told["comparison"]["compared"][0];
    assert_eq!((&compared["pairs"], &compared["blocks"]), (&json!(12), &json!(4)));
    let sides: Vec<&str> =
        told["passes"].as_array().expect("a list").iter().map(|pass| pass["side"].as_str().expect("a name")).collect();
    assert_eq!(sides, ["A", "B", "B", "A", "A", "B", "B", "A"]);
    let (run, told) = bench(&["multi-turn"], &["--url", &fast.url, "--against", &slow.url, "--num-rounds=1"]);
    assert_eq!((run.code, &told["comparison"]["verdict"]), (1, &json!("worse")), "{run:?}");
    let heard = slow.heard();
    assert_eq!(heard.len(), 24);
    assert_eq!(heard, fast.heard());
}

#[test]
fn each_pass_has_a_verdict_of_its_own() {
    let even = Server::of(|_| Behaviour::Cached(5));
    // A block is three conversations of two turns in each pass: the first finds nothing in the
    // cache, the repetition all.
    let uneven = Server::of(|request| Behaviour::Cached(if request % 12 < 6 { 0 } else { 10 }));
    // No difference of times counts: they are those of this machine.
    let phases = ["compare", &even.url, &uneven.url, "--phases=first,repeat", "--margin=95"];
    let (run, told) = bench(&phases, &[]);
    let comparison = &told["comparison"];
    assert_eq!((run.code, &comparison["verdict"]), (1, &json!("mixed")), "{run:?}");
    for (one, (pass, verdict)) in
        comparison["compared"].as_array().expect("a list").iter().zip([("first", "worse"), ("repeat", "better")])
    {
        assert_eq!((&one["pass"], &one["verdict"]), (&json!(pass), &json!(verdict)), "{run:?}");
        assert_eq!(verdict_in(one, "cached_tokens"), verdict, "{run:?}");
        let says = one["says"].as_str().expect("words");
        assert!(says.ends_with(&format!("; {verdict} in cached tokens")), "{says}");
    }
    let primary = [&phases[..], &["--primary=cached-tokens"]].concat();
    let (_, told) = bench(&primary, &[]);
    let comparison = &told["comparison"];
    assert_eq!(
        (&comparison["primary"], &comparison["primary_verdicts"]),
        (&json!("cached_tokens"), &json!(["worse", "better"]))
    );
    let run = mcctl(&[&["bench"], &primary[..], &SMALL[..8]].concat());
    for words in ["Verdict for first: B is worse than A in cached", "Verdict for repeat: B is better than A in cached"]
    {
        assert!(run.stdout.contains(words), "{run:?}");
    }
}

#[test]
fn compare_reports_every_block_both_sides_and_both_endpoints() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("p.html");
    let one = Server::start(3, 5);
    let other = Server::start(3, 5);
    let html = format!("--html={}", page.display());
    let run = mcctl(&[&["bench", "compare", &one.url, &other.url, &html], &SMALL[..8]].concat());
    for block in 0..4 {
        for side in ["A", "B"] {
            let name = format!("{side} run (block {block}) ");
            assert_eq!(run.stdout.lines().filter(|line| line.starts_with(&name)).count(), 1, "{name}: {run:?}");
        }
    }
    let (_, sums) = run.stdout.split_once("Totals over all blocks").expect("there are sums");
    for side in ["A run ", "B run "] {
        let row = sums.lines().find(|line| line.starts_with(side)).unwrap_or_else(|| panic!("{side}: {run:?}"));
        assert_eq!(row.split_whitespace().skip(2).take(3).collect::<Vec<_>>(), ["24", "24", "0"], "{row}");
    }
    let page = std::fs::read_to_string(&page).expect("it was written");
    let title = format!("mcctl bench compare: B ({}/generate) vs A ({}/generate)", other.url, one.url);
    assert!(page.contains(&format!("<title>{title}, ")) && page.contains(&format!("<h1>{title}</h1>")), "{page}");
}

#[test]
fn other_work_is_refused_with_its_reason() {
    let one = Server::start(3, 5);
    let other = Server::start(4, 5);
    let (run, told) = bench(&["compare", &one.url, &other.url], &[]);
    assert_eq!((run.code, &told["comparison"]["verdict"]), (1, &json!("refused")), "{run:?}");
    let says = told["comparison"]["says"].as_str().expect("words");
    assert!(says.contains("25.0 %"), "{says}");
    // A conversation ends with its failure, so two of 24 requests are missing at one endpoint.
    let broken = Server::of(|n| match n {
        0 | 1 => Behaviour::Status(503, ""),
        _ => Behaviour::Answer(3, Duration::from_millis(5), Duration::from_millis(2)),
    });
    let (run, told) = bench(&["compare", &one.url, &broken.url], &[]);
    assert_eq!((run.code, &told["comparison"]["verdict"]), (1, &json!("refused")), "{run:?}");
}

#[test]
fn an_endpoint_at_which_nothing_goes_well_gives_3() {
    let one = Server::start(3, 5);
    let broken = Server::of(|_| Behaviour::Status(503, ""));
    let dead = mcctl(&["bench", "compare", &one.url, "http://127.0.0.1:1", "--num-clients=2"]);
    assert!(dead.fails(3).contains("endpoint B") && dead.stderr.contains("Connection refused"), "{dead:?}");
    let (run, told) = bench(&["compare", &broken.url, &one.url], &[]);
    assert_eq!((run.code, &told["comparison"]["verdict"]), (3, &json!("refused")), "{run:?}");
}

#[test]
fn a_server_is_compared_with_itself_first() {
    let one = Server::start(3, 20);
    let other = Server::start(3, 20);
    let (run, told) = bench(&["compare", &one.url, &other.url, "--a-a"], &[]);
    let comparison = &told["comparison"];
    assert!(comparison["noise_floor"][0]["pass"] == "a-a run", "{run:?}");
    assert_eq!(comparison["noise_floor"][0]["pairs"], 24);
    assert_eq!(told["passes"].as_array().expect("a list").len(), 16);
    let (run, told) = bench(&["multi-turn", "--self-compare"], &["--url", &one.url]);
    assert_eq!(told["comparison"]["b"]["name"], "A again", "{run:?}");
}

#[test]
fn a_run_that_was_written_down_is_compared_with_another_and_with_a_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let before = path("before");
    let after = path("after");
    let slow = slow();
    let fast = fast();
    // One pass per run.
    let single: Vec<&str> = SMALL.into_iter().filter(|flag| !flag.starts_with("--blocks")).collect();
    let bench = |words: &[&str], args: &[&str]| bench_with(&single, words, args);
    for (server, file) in [(&slow, &before), (&fast, &after)] {
        let (run, _) = bench(&["multi-turn"], &["--url", &server.url, "--records", file]);
        assert_eq!(run.code, 0, "{run:?}");
    }
    for after in [&after, &fast.url] {
        // One after the other on a machine that may be busy: what the wait for tokens differs by is
        // no matter here.
        let (run, told) = bench(&["compare", &before, after], &["--margin=60"]);
        let comparison = &told["comparison"];
        assert_eq!((run.code, &comparison["verdict"]), (0, &json!("better")), "{run:?}");
        let caveats = comparison["doubts"].as_array().expect("a list");
        assert!(caveats.iter().any(|caveat| caveat.to_string().contains("not interleaved")), "{run:?}");
    }
    let (run, told) = bench(&["compare", &after, &before], &["--margin=60"]);
    assert_eq!((run.code, &told["comparison"]["verdict"]), (1, &json!("worse")), "{run:?}");
    // The order of URL and file does not matter, and --against is the same.
    let labels = ["--margin=60", "--label-a=new", "--label-b=old"];
    for words in [&["compare", &fast.url, &before][..], &["multi-turn", "--url", &fast.url, "--against", &before]] {
        let (run, told) = bench(words, &labels);
        let comparison = &told["comparison"];
        assert_eq!((run.code, &comparison["verdict"]), (1, &json!("worse")), "{run:?}");
        assert_eq!((&comparison["a"]["name"], &comparison["b"]["target"]), (&json!("new"), &json!(before)));
        assert_eq!((&told["passes"][0]["side"], &comparison["plan"]), (&json!("new"), &Value::Null));
    }
    for (flag, code) in
        [("--seed=9", 2), ("--blocks=4", 2), ("--request-rate=3", 2), ("--num-clients=13", 2), ("--num-rounds=3", 1)]
    {
        let words = [&["bench", "compare", &before, &fast.url][..], &single, &[flag]].concat();
        mcctl(&words).fails(code);
    }
    // The input is not overwritten.
    for flag in ["--json", "--output-file", "--csv"] {
        mcctl(&["bench", "compare", &before, &after, "--overwrite", flag, &before]).fails(2);
    }
    let header = std::fs::read_to_string(&before).expect("records").lines().next().expect("a header").to_owned();
    let interrupted = path("interrupted");
    std::fs::write(&interrupted, header + "\n").expect("written");
    mcctl(&["bench", "compare", &interrupted, &after]).fails(2);
    mcctl(&["bench", "compare", &before, &after, "--label-b=A"]).fails(2);
    mcctl(&["bench", "compare", &before, &before]).fails(2);
    mcctl(&["bench", "compare", "/nowhere", &before]).fails(2);
    mcctl(&["bench", "compare", "/dev/zero", &before]).fails(2);
}

#[test]
fn recorded_runs_are_compared_only_under_the_same_load() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let one = Server::start(1, 20);
    let other = Server::start(1, 20);
    let single: Vec<&str> = SMALL.into_iter().filter(|flag| !flag.starts_with("--blocks")).collect();
    let unlimited = path("unlimited");
    let limited = path("limited");
    for (file, rate) in [(&unlimited, "--request-rate=inf"), (&limited, "--request-rate=200")] {
        let (run, _) = bench_with(&single, &["multi-turn"], &[rate, "--url", &one.url, "--records", file]);
        assert_eq!(run.code, 0, "{run:?}");
    }
    mcctl(&["bench", "compare", &unlimited, &limited]).fails(1);
    // Records without a load come from an older version.
    let text = std::fs::read_to_string(&limited).expect("records");
    let (first, rest) = text.split_once('\n').expect("a header");
    let mut header: Value = serde_json::from_str(first).expect("JSON");
    assert_eq!((&header["load"]["request_rate"], &header["load"]["conversations"]), (&json!(200.0), &json!(12)));
    for key in ["load", "servers"] {
        header.as_object_mut().expect("an object").remove(key);
    }
    let old = path("old");
    std::fs::write(&old, format!("{header}\n{rest}")).expect("written");
    let (run, told) = bench_with(&single, &["compare", &old, &limited], &["--margin=60"]);
    assert_eq!(run.code, 0, "{run:?}");
    assert!(told["doubts"].to_string().contains("older version"), "{run:?}");

    // A server that is compared with one endpoint of a recorded comparison gets the same blocks.
    let compared = path("compared");
    let (run, _) = bench(&["compare", &one.url, &other.url], &["--margin=60", "--records", &compared]);
    assert_eq!(run.code, 0, "{run:?}");
    let flags: Vec<&str> = single.iter().copied().filter(|flag| !flag.starts_with("--request-rate")).collect();
    let (run, told) = bench_with(&flags, &["compare", &compared, &other.url], &["--margin=60"]);
    assert_eq!(run.code, 0, "{run:?}");
    let comparison = &told["comparison"]["compared"][0];
    assert_eq!((&comparison["blocks"], &comparison["pairs"]), (&json!(4), &json!(24)), "{run:?}");
    assert_eq!(told["passes"].as_array().expect("a list").len(), 4);
}

#[test]
fn requests_that_meet_the_limits_are_counted_and_too_few_of_them_give_1() {
    let server = Server::start(3, 20);
    let goodput =
        |limit: &str| bench(&["multi-turn", "--goodput", limit, "--require-goodput=0.9"], &["--url", &server.url]);
    let (run, told) = goodput("e2el:60000");
    assert_eq!(run.code, 0, "{run:?}");
    let goals = &told["passes"][0]["goals"];
    assert_eq!((&goals["goodput"]["met"], &goals["goodput"]["share"]), (&json!(24), &json!(1.0)));
    assert!(goals["steady_state"]["output_tokens_per_s"].as_f64().expect("a number") > 0.0);
    let (run, told) = goodput("ttft:10");
    assert_eq!((run.code, &told["passes"][0]["goals"]["goodput"]["met"]), (1, &json!(0)), "{run:?}");
    mcctl(&["bench", "multi-turn", "--goodput", "ttft:none"]).fails(2);
    mcctl(&["bench", "multi-turn", "--require-goodput=0.9"]).fails(2);
}

#[test]
fn a_sweep_has_a_pass_per_load_and_ends_when_two_in_a_row_fail() {
    let server = Server::start(3, 20);
    let (run, told) = bench(&["multi-turn", "--sweep-concurrency=1,2,4"], &["--url", &server.url]);
    assert_eq!(run.code, 0, "{run:?}");
    let sweep = &told["sweep"];
    let loads: Vec<f64> = sweep["points"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|point| point["load"].as_f64().expect("a number"))
        .collect();
    assert_eq!((loads, &sweep["of"]), (vec![1.0, 2.0, 4.0], &json!("concurrency")));
    let limits = ["--url", &server.url, "--goodput=ttft:1"];
    let (run, told) = bench(&["multi-turn", "--sweep-rate=100:400:100"], &limits);
    let sweep = &told["sweep"];
    assert_eq!((&sweep["not_run"], &sweep["highest_that_meets"]), (&json!([300.0, 400.0]), &Value::Null), "{run:?}");
    let (_, told) = bench(&["multi-turn", "--sweep-rate=100:400:100", "--sweep-all"], &limits);
    assert_eq!(told["sweep"]["points"].as_array().expect("a list").len(), 4);
    // No load finds prompts of another load in the cache.
    let mut heard = server.heard();
    heard.dedup();
    assert_eq!(heard.len(), 4 * 24, "each load has its own prompts");
    for bad in ["--sweep-rate=0", "--sweep-rate=1 --sweep-concurrency=2", "--sweep-rate=1 --self-compare"] {
        mcctl(&[&["bench", "multi-turn"], &bad.split(' ').collect::<Vec<_>>()[..]].concat()).fails(2);
    }
}

#[test]
fn what_a_sweep_leaves_for_other_programs_has_the_load_of_each_pass() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let server = Server::start(3, 1);
    for (sweep, expected) in [
        ("--sweep-rate=200,400", [(json!(200.0), json!(128)), (json!(400.0), json!(128))]),
        ("--sweep-concurrency=1,3", [(json!("inf"), json!(1)), (json!("inf"), json!(3))]),
    ] {
        let file = path(sweep);
        let (run, _) = bench(&["multi-turn", sweep], &["--url", &server.url, "--output-file", &file]);
        assert_eq!(run.code, 0, "{run:?}");
        let lines = std::fs::read_to_string(&file).expect("it was written");
        let loads: Vec<(Value, Value)> = lines
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("JSON"))
            .map(|line| (line["request_rate"].clone(), line["max_concurrency"].clone()))
            .collect();
        assert_eq!(loads, expected);
    }
}

#[test]
fn a_step_that_cannot_be_done_is_no_success_and_presets_take_no_phases() {
    let server = Server::start(3, 1);
    let run = mcctl(&[
        "bench",
        "multi-turn",
        "--url",
        &server.url,
        "--num-clients=2",
        "--phases=clear,first",
        "--json",
        "--yes",
    ]);
    let told: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"));
    assert_eq!((run.code, told["passes"].as_array().map(Vec::len)), (1, Some(0)), "{run:?}");
    let caveats = told["doubts"].as_array().expect("a list");
    assert!(caveats.iter().any(|caveat| caveat.to_string().contains("the run is incomplete: ")), "{told}");
    for bad in ["--sweep-rate=1", "--preset=kep74"] {
        mcctl(&["bench", "multi-turn", "--url", &server.url, "--phases=flush,first", bad]).fails(2);
    }
    mcctl(&["bench", "multi-turn", "--url", &server.url, "--preset=kep74", "--self-compare"]).fails(2);
}

#[test]
fn kep_74_prints_its_own_table_and_one_by_turn() {
    let without = Server::start(3, 500);
    let with = Server::start(3, 5);
    let words = ["--preset=kep74", "--num-clients=6", "--request-rate=200", "--api=generate"];
    let line = [
        &["bench", "compare", &without.url, &with.url],
        &words[..],
        &["--request-length=20", "--output-length=3", "--no-server-calls", "--lag-limit=1h"],
    ]
    .concat();
    let run = mcctl(&line);
    assert_eq!(run.code, 0, "{run:?}");
    let rows = ["First-turn", "Multi-turn", "Turn 1", "Turns 2..n"];
    for row in rows {
        assert_eq!(
            run.stdout.lines().filter(|line| line.starts_with(row) && !line.contains(": ")).count(),
            3,
            "{}",
            run.stdout
        );
    }
    let run = mcctl(&[&line[..], &["--json"]].concat());
    let told: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"));
    is_as_described(&told);
    let table = told["kep74"]["table"].as_array().expect("a list");
    assert_eq!((&table[0]["without"]["requests"], &table[1]["with"]["requests"]), (&json!(6), &json!(6)));
    assert!(table[0]["percent"][1].as_f64().expect("a number") < 0.0, "{told}");
    assert!(told["kep74"]["multi_turn"][1]["with"]["requests"].as_u64().expect("a number") >= 6);
}

#[test]
fn a_published_run_is_a_preset_that_flags_override_and_a_scale_shrinks() {
    let server = Server::start(1, 1);
    let run = mcctl(&[
        "bench",
        "multi-turn",
        "--url",
        &server.url,
        "--preset=hicache-blog",
        "--scale=0.01",
        "--num-clients=3",
        "--request-rate=inf",
        "--no-server-calls",
        "--json",
    ]);
    assert_eq!(run.code, 0, "{run:?}");
    let told: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"));
    assert_eq!(told["passes"][0]["sent"], 30, "three clients of ten rounds");
    let first: Value = serde_json::from_slice(&server.heard()[0]).expect("JSON");
    assert_eq!(first["sampling_params"]["max_new_tokens"], 1);
    mcctl(&["bench", "multi-turn", "--preset=hicache-blog", "--scale=x"]).fails(2);
    mcctl(&["bench", "multi-turn", "--preset=no-such"]).fails(2);
    mcctl(&["bench", "multi-turn", "--scale=2"]).fails(2);
}

/// A simulated server with this L1 and L2 in tokens.
async fn simulator(device_tokens: u64, host_tokens: u64) -> RunningSimulator {
    let cost = Cost { step: Duration::from_millis(2), prefill_tokens_per_s: 50_000.0, ..Config::small().cost };
    let config = Config { page_size: 16, device_tokens, host_tokens, bytes_per_token: 64, cost, ..Config::small() };
    sim::start(RealEnv::new(), &HostPort::new("127.0.0.1", 0), config, None).await.expect("a free port")
}

/// Conversations of up to 800 tokens. Cached tokens decide, because they depend on a busy machine
/// the least.
const SHORT: [&str; 7] = [
    "--num-rounds=3",
    "--request-length=250",
    "--output-length=16",
    "--primary=cached-tokens",
    "--yes",
    "--json",
    "--label-b=with L2",
];

#[test]
fn the_plan_reaches_the_tier_that_differs_and_shows_its_benefit() {
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let (small, large) = runtime.block_on(async { (simulator(2_048, 0).await, simulator(2_048, 16_384).await) });
    let urls = [&small, &large].map(|sim| format!("http://{}", sim.at()));
    let line = [&["bench", "compare", &urls[0], &urls[1]], &SHORT[..]].concat();
    let run = finish(command(&line).output().expect("the program starts"));
    let told: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"));
    is_as_described(&told);
    let comparison = &told["comparison"];
    assert_eq!((run.code, &comparison["primary_verdicts"]), (0, &json!(["better"])), "{run:?}");
    let plan = &comparison["plan"];
    assert_eq!(plan["tiers"], json!([{"tier": "L2", "above_tokens": 2_048, "reached": true}]), "{plan}");
    assert!(plan["working_set_tokens"].as_u64().is_some_and(|tokens| tokens > 2_048), "{plan}");
    assert!(plan["blocks"].as_u64().is_some_and(|blocks| blocks >= 4) && plan["request_rate"].is_f64(), "{plan}");
    assert!(run.stderr.contains("Same plan: --num-clients "), "{}", run.stderr);
    assert_eq!(comparison["sides"][1]["name"], "with L2");
    // A load that fits into L1 cannot show the benefit of L2. A caveat states this before and after
    // the run.
    let few = [&line[..], &["--num-clients=8", "--blocks=4", "--request-rate=inf"]].concat();
    let run = finish(command(&few).output().expect("the program starts"));
    let told: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"));
    let tiers = &told["comparison"]["plan"]["tiers"];
    assert_eq!(tiers[0]["reached"], false, "{tiers}");
    for text in [&run.stderr, &told["doubts"].to_string()] {
        assert!(text.contains("the load does not reach L2 (above 2048 tokens)"), "{text}");
    }
    runtime.block_on(async {
        small.stop().await;
        large.stop().await;
    });
}

#[test]
fn unknown_cache_sizes_are_a_caveat_before_the_run() {
    let one = Server::start(3, 5);
    let other = Server::start(3, 5);
    let (run, told) = bench(&["compare", &one.url, &other.url], &[]);
    assert_eq!(told["comparison"]["plan"]["tiers"], Value::Null);
    assert!(run.stderr.contains("the cache sizes of A and B are unknown (--no-server-calls)"), "{}", run.stderr);
    let resume = ["bench", "compare", &one.url, &other.url, "--resume=none", "--seed=1"];
    mcctl(&resume).fails(2);
}
