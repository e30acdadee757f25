//! `mcctl bench ladder`: the same prompts computed, and answered from L1, L2 and L3 on purpose.

use std::path::PathBuf;

use serde::Serialize;

use crate::commands::bench::multi_turn::args::{Api, EndpointArgs, ServerArgs};
use crate::commands::bench::multi_turn::live::Screen;
use crate::commands::bench::multi_turn::measure;
use crate::commands::bench::multi_turn::negative_numbers_are_values;
use crate::commands::bench::multi_turn::reach::reached;
use crate::commands::bench::sheet::Sheet;
use crate::commands::confirm::{self, ConfirmArgs};
use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::output;
use crate::commands::runtime::{self, Signals};
use crate::engine::env::{Env, RealEnv};
use crate::engine::load::Seed;
use crate::engine::load::ladder::{Ladder, Rung, Rungs, schedule};
use crate::engine::load::server::{Info, Server};
use crate::engine::load::session::{Figure, Observer, Pass, Session, Side};
use crate::engine::load::workload::Workload;

/// Lengths where none are given, as far as they fit.
const LENGTHS: [u32; 8] = [512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536];

/// Which prompts, where.
#[derive(Clone, Debug, clap::Args)]
#[command(
    mut_args(negative_numbers_are_values),
    after_help = "The server must be SGLang, and nobody else may use it meanwhile: its L1 and L2 are emptied again and again, and filled \
    with made-up prompts. L3 keeps what it has. A request counts for a tier only when the server says that this tier answered it.\n\
    Exit codes: 0 every tier answered at every length, 1 not, or a signal ended it (what was measured is told), 2 command line wrong, 3 the \
    server does not answer or is no SGLang, 4 the file of --json could not be written, 70 a bug in mcctl. Where the reader of stdout has \
    gone away the code is 0."
)]
pub struct Args {
    #[command(flatten)]
    endpoint: EndpointArgs,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    confirm: ConfirmArgs,
    /// Tokens of the prompts [default: 512, 1024, 2048 ... up to 65536, as far as they fit]
    #[arg(long, value_delimiter = ',', value_name = "LIST", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    lengths: Vec<u32>,
    /// Prompts of each length
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeats: u32,
    /// Tokens of an answer
    #[arg(long, alias = "output-tokens", default_value_t = 4, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    output_length: u32,
    /// Ids are drawn below this
    #[arg(long, default_value_t = 32_000, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    vocab_size: u32,
    /// The prompts come from it; another one each time, else L3 has them already
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// One JSON document on stdout, or into FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

/// The document (schema `mcctl.bench.ladder/1`).
#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    version: &'static str,
    target: String,
    seed: u64,
    server: Info,
    #[serde(flatten)]
    ladder: Ladder,
    /// Do the sums over the answers agree with the server's counters, in every pass?
    agrees: Option<bool>,
    doubts: Vec<String>,
}

/// Tells the steps as they come.
struct Told;

impl Observer for Told {
    fn note(&mut self, text: &str) {
        output::say(text);
    }
}

impl Args {
    /// Measure.
    ///
    /// # Errors
    /// What the user has to know.
    pub fn run(self) -> Outcome {
        if self.endpoint.api != Api::Generate {
            return Err(Failure::usage("a ladder needs prompts of token ids").next("use --api generate"));
        }
        let target = self.endpoint.target()?;
        let base = self.endpoint.base_of(&target);
        self.endpoint.trust_is_used(target.via.tls.is_some() || self.server.has_https())?;
        let server = self.server.server(&self.endpoint, &target, true)?;
        let server = server
            .ok_or_else(|| Failure::usage("a ladder needs the server's other routes").next("drop --no-server-calls"))?;
        reached([("A", &target)])?;
        let info = info(&server)?;
        let device = info.device_tokens.unwrap_or(0);
        let rungs = self.rungs(device)?;
        confirm::destruction(self.confirm.yes, &format!("empties the caches (L1 and L2) of {base} again and again"))?;
        // A group is measured while it is whole in L1, beside what its answers take.
        let groups = rungs.groups(device * 2 / 5);
        let has_storage = info.storage.is_some();
        let mut side = Side::new("A", target, Box::new(rungs.clone()) as Box<dyn Workload + Send>);
        (side.server, side.vocabulary) = (Some(server), self.vocab_size);
        let seed = rungs.seed;
        let session = Session {
            sides: vec![side],
            schedule: schedule(&groups, info.has_host, has_storage),
            seed,
            keep_figures: true,
        };
        let mut told = Told;
        let measured = measure::carry_out(session, Vec::new(), vec![&mut told], &Screen::new(true))?;
        let mut wanted = vec![Rung::Cold, Rung::Device];
        wanted.extend(info.has_host.then_some(Rung::Host));
        wanted.extend(has_storage.then_some(Rung::Storage));
        let passes = &measured.executed.passes;
        let ladder = Ladder::of(&rungs, info.page_size.unwrap_or(1), &figures(passes));
        let mut doubts: Vec<String> = Vec::new();
        doubts.extend(measured.signal.map(|signal| format!("{signal} ended the run early")));
        doubts.extend(measured.executed.broke.as_ref().map(|broke| format!("not all was done: {broke}")));
        let lacking = ladder.lacking(&wanted);
        let stopped = measured.signal.is_some() || measured.executed.broke.is_some();
        // What a run that ended early did not come to needs no reason of its own.
        let begun = |at: &&(u32, Rung)| ladder.rungs.iter().any(|rung| (rung.length, rung.tier) == **at);
        let told = lacking.iter().filter(|at| !stopped || begun(at));
        let mut said: Vec<String> = told.map(|(length, tier)| lack(*length, *tier, &ladder, &info)).collect();
        doubts.append(&mut said);
        for doubt in passes.iter().filter_map(|pass| pass.observed.as_ref()).flat_map(|observed| &observed.doubts) {
            if !doubts.contains(doubt) && !doubt.starts_with("the cache was warm") {
                doubts.push(doubt.clone());
            }
        }
        let agrees: Vec<bool> = passes.iter().filter_map(|pass| pass.observed.as_ref()?.agrees).collect();
        let failed: u64 = passes.iter().map(|pass| pass.tally.failed()).sum();
        if failed > 0 {
            doubts.push(format!("{failed} requests failed"));
        }
        let report = Report {
            schema: "mcctl.bench.ladder/1",
            version: env!("CARGO_PKG_VERSION"),
            target: base,
            seed: rungs.seed.0,
            server: info,
            ladder,
            agrees: (!agrees.is_empty()).then(|| agrees.iter().all(|agrees| *agrees)),
            doubts,
        };
        match self.json.as_deref() {
            Some(path) if path.as_os_str() != "-" => {
                let text = serde_json::to_string(&report).expect("our own documents have only text keys");
                std::fs::write(path, text + "\n").map_err(|error| {
                    Failure::host(format!("cannot write {}", path.display())).found(error.to_string())
                })?;
                output::data(render(&report))?;
            }
            Some(_) => output::json(&report)?,
            None => output::data(render(&report))?,
        }
        let none = passes.iter().all(|pass| pass.tally.all.requests == 0);
        Ok(match (none, lacking.is_empty() && failed == 0 && !stopped) {
            _ if measured.bugs() > 0 => Exit::Bug,
            (true, _) if measured.signal.is_none() => Exit::Unreachable,
            (_, true) => Exit::Done,
            (_, false) => Exit::No,
        })
    }

    fn rungs(&self, device: u64) -> Result<Rungs, Failure> {
        // Twice, since the filler that pushes it out runs beside nothing else, and an answer takes room.
        let most = device.saturating_sub(u64::from(self.output_length)) / 2;
        let mut lengths = match self.lengths.is_empty() {
            true => LENGTHS.into_iter().filter(|length| u64::from(*length) <= most).collect(),
            false => self.lengths.clone(),
        };
        lengths.sort_unstable();
        lengths.dedup();
        let longest = lengths.last().copied().unwrap_or(0);
        if lengths.is_empty() || u64::from(longest) > most {
            return Err(Failure::usage(format!("a prompt of {longest} tokens is too long for this server"))
                .found(format!("its L1 holds {device} tokens; a ladder needs twice the prompt"))
                .next(format!("give --lengths up to {most}")));
        }
        let seed = self.seed.unwrap_or_else(|| RealEnv::new().rng() >> 16);
        Ok(Rungs {
            lengths,
            repeats: self.repeats,
            vocabulary: self.vocab_size,
            output: self.output_length,
            seed: Seed(seed),
        })
    }
}

/// What the server says of itself.
fn info(server: &Server) -> Result<Info, Failure> {
    let told = runtime::block_on(0, async {
        let mut signals = Signals::take()?;
        tokio::select! {
            told = server.info() => Ok(told),
            came = signals.next() => Err(Failure::no(format!("{came}: nothing was measured yet"))),
        }
    })?;
    let found = match told {
        Ok(Some(info)) if info.device_tokens.is_some() => return Ok(info),
        Ok(Some(_)) => "it does not say how many tokens its L1 holds (max_total_num_tokens)".to_owned(),
        Ok(None) => "it has no /server_info of SGLang's".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(Failure::unreachable(format!("{} cannot be climbed", server.base()))
        .tried("ask /server_info what its caches hold")
        .found(found)
        .next("name an SGLang server of release 0.5 or later with --url; bench multi-turn measures any other"))
}

/// Every request with the tier that was to answer it.
fn figures(passes: &[Pass]) -> Vec<(Rung, Figure)> {
    let tier = |pass: &Pass| Rung::ALL.into_iter().find(|rung| rung.name() == pass.id.name);
    passes
        .iter()
        .filter_map(|pass| Some((tier(pass)?, pass)))
        .flat_map(|(tier, pass)| pass.figures.iter().map(move |f| (tier, *f)))
        .collect()
}

/// Why a tier answered nothing of a length, as far as that can be told.
fn lack(length: u32, tier: Rung, ladder: &Ladder, info: &Info) -> String {
    let rung = ladder.rungs.iter().find(|rung| (rung.length, rung.tier) == (length, tier));
    let got = match rung {
        None => "no request went well".to_owned(),
        Some(rung) => {
            format!(
                "{} requests had {} tokens from device, {} from host, {} from storage, {} computed",
                rung.requests, rung.device, rung.host, rung.storage, rung.computed
            )
        }
    };
    let threshold = match tier {
        Rung::Storage if length <= info.prefetch_threshold => {
            format!(" (L3 is asked for {} tokens at least)", info.prefetch_threshold)
        }
        _ => String::new(),
    };
    format!("no prompt of {length} tokens came from {} alone: {got}{threshold}", tier.name())
}

fn render(report: &Report) -> String {
    let mut text = format!(
        "{} (SGLang {}): {} tokens in L1, pages of {}, L3 {} (seed {})\n\n",
        report.target,
        report.server.version.as_deref().unwrap_or("of no version"),
        report.server.device_tokens.unwrap_or(0),
        report.server.page_size.unwrap_or(0),
        report.server.storage.as_deref().unwrap_or("none"),
        report.seed
    );
    let head = ["tokens", "tier", "verified", "first token, ms", "95 % of the mean", "tokens/s", "cached each"];
    let mut rows = Sheet::new("", &head).words(1);
    for rung in &report.ladder.rungs {
        let ttft = rung.ttft;
        let interval = ttft.and_then(|ttft| Some(format!("{:.1} to {:.1}", ttft.low_ms?, ttft.high_ms?)));
        rows.row([
            rung.length.to_string(),
            rung.tier.name().to_owned(),
            format!("{}/{}", rung.verified, rung.requests),
            ttft.map_or("-".to_owned(), |ttft| format!("{:.1}", ttft.mean_ms)),
            interval.unwrap_or_else(|| "-".to_owned()),
            rung.tokens_per_s.map_or("-".to_owned(), |rate| format!("{rate:.0}")),
            format!("{:.0}", (rung.device + rung.host + rung.storage) as f64 / f64::from(rung.requests.max(1))),
        ]);
    }
    rows.notes.push("cached each: tokens of a prompt that came from a cache, the mean over the requests".to_owned());
    text.push_str(&rows.text());
    if !report.ladder.fits.is_empty() {
        text.push('\n');
        let mut rows = Sheet::new("A straight line through the lengths", &["tier", "fixed, ms", "further tokens/s"]);
        for fit in &report.ladder.fits {
            let rate = fit.tokens_per_s.map_or("no longer with more".to_owned(), |rate| format!("{rate:.0}"));
            rows.row([fit.tier.name().to_owned(), format!("{:.1}", fit.fixed_ms), rate]);
        }
        text.push_str(&rows.text());
    }
    for even in &report.ladder.break_even {
        let shown =
            even.shown_from.map_or("at no measured length".to_owned(), |length| format!("from {length} tokens on"));
        let fitted = match even.fitted {
            None => "they never cross".to_owned(),
            Some(0.0) => "it is below at any length".to_owned(),
            Some(tokens) => format!("they cross at {tokens:.0} tokens"),
        };
        text.push_str(&format!("\n{} is faster than computing {shown}; by the lines {fitted}", even.tier.name()));
    }
    match report.agrees {
        Some(true) => text.push_str("\nanswers and the server's counters agree exactly, by tier, in every pass"),
        Some(false) => text.push_str("\nanswers and the server's counters differ"),
        None => {}
    }
    for doubt in &report.doubts {
        text.push_str(&format!("\ndoubt: {doubt}"));
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::load::ladder::Measured;

    #[test]
    fn cached_tokens_are_those_of_one_prompt_however_many_there_were() {
        let told = serde_json::json!({"page_size": 16, "max_total_num_tokens": 4096});
        let rung = Measured {
            length: 512,
            tier: Rung::Device,
            requests: 5,
            verified: 5,
            device: 5 * 496,
            host: 0,
            storage: 0,
            computed: 5 * 16,
            ttft: None,
            tokens_per_s: None,
        };
        let report = Report {
            schema: "mcctl.bench.ladder/1",
            version: "0",
            target: "http://h:1".to_owned(),
            seed: 1,
            server: Info::read(&told).expect("SGLang's"),
            ladder: Ladder { rungs: vec![rung], ..Ladder::default() },
            agrees: None,
            doubts: Vec::new(),
        };
        let text = render(&report);
        let row = text.lines().find(|line| line.contains(" device ")).expect("its row");
        assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["512", "device", "5/5", "-", "-", "-", "496"]);
        assert!(text.contains("\ncached each: "), "{text}");
        let none = lack(512, Rung::Host, &report.ladder, &report.server);
        assert!(none.ends_with("from host alone: no request went well"), "{none}");
        let other = lack(512, Rung::Device, &report.ladder, &report.server);
        assert!(other.contains("5 requests had 2480 tokens from device"), "{other}");
    }
}
