//! Two endpoints beside each other, in the report.

use serde::Serialize;

use crate::commands::bench::multi_turn::args::CompareArgs;
use crate::commands::bench::sheet::{Section, Sheet};
use crate::commands::error::Exit;
use crate::commands::svg::{Axis, Plot, Series};
use crate::engine::load::Seed;
use crate::engine::load::compare::{Compared, Refusal, Terms, compare};
use crate::engine::load::paired::{CONVERSATIONS_MIN, DRAWS, Difference, Verdict};
use crate::engine::load::session::Pass;

/// Passes that compare an endpoint with itself have this before their names.
pub(super) const A_A: &str = "a-a ";

/// An endpoint.
#[derive(Clone, Debug, Serialize)]
pub(in crate::commands::bench) struct Named {
    pub name: String,
    /// Its URL, or the file that its records were read from.
    pub target: String,
}

/// A figure at both.
#[derive(Clone, Debug, Serialize)]
pub(in crate::commands::bench) struct DifferenceReport {
    pub measure: &'static str,
    pub a: f64,
    pub b: f64,
    /// `b - a`, of pairs.
    pub difference: f64,
    /// The same as a share of `a`.
    pub percent: Option<f64>,
    pub low: f64,
    pub high: f64,
    pub conversations: usize,
    pub verdict: Verdict,
    #[serde(skip)]
    words: &'static str,
}

/// Passes of one name.
#[derive(Clone, Debug, Serialize)]
pub(in crate::commands::bench) struct ComparedReport {
    pub pass: String,
    pub blocks: usize,
    pub pairs: usize,
    /// Why nothing is said.
    pub refusals: Vec<String>,
    pub differences: Vec<DifferenceReport>,
    /// Of this pass alone.
    pub verdict: Said,
    pub says: String,
    /// Mean time to first token of A in the first and the second half of its blocks.
    pub a_halves_ttft_ms: Option<[f64; 2]>,
}

/// What is said in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::commands::bench) enum Said {
    /// B is better in something and worse in nothing.
    Better,
    /// B is worse in something and better in nothing.
    Worse,
    /// Both.
    Mixed,
    NoDifferenceShown,
    TooFew,
    /// The work was not the same.
    Refused,
}

/// See the module.
#[derive(Clone, Debug, Serialize)]
pub(in crate::commands::bench) struct ComparisonReport {
    pub a: Named,
    pub b: Named,
    /// Share of the intervals that hold the truth.
    pub level: f64,
    /// Share of A's mean from which on a difference counts, percent.
    pub margin_percent: f64,
    /// A against itself.
    pub noise_floor: Option<Vec<ComparedReport>>,
    pub compared: Vec<ComparedReport>,
    pub verdict: Said,
    pub says: String,
    /// Why it may be doubted.
    pub doubts: Vec<String>,
}

/// The endpoints of a comparison, as indexes of sides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sides {
    /// A, and B.
    pub pair: [usize; 2],
    /// A, and A once more.
    pub floor: Option<[usize; 2]>,
}

fn told(compared: &Compared, [a, b]: [&str; 2]) -> ComparedReport {
    let (verdict, says) = Said::of(std::slice::from_ref(compared), [a, b]);
    let one = |(measure, found): &(crate::engine::load::compare::Measure, Difference)| DifferenceReport {
        measure: measure.name(),
        a: found.mean_a,
        b: found.mean_b,
        difference: found.difference(),
        percent: found.share().map(|share| share * 100.0),
        low: found.low,
        high: found.high,
        conversations: found.conversations,
        verdict: found.verdict,
        words: measure.words(),
    };
    ComparedReport {
        pass: compared.pass.clone(),
        blocks: compared.blocks,
        pairs: compared.pairs,
        refusals: compared.refusals.iter().map(ToString::to_string).collect(),
        differences: compared.differences.iter().map(one).collect(),
        verdict,
        says,
        a_halves_ttft_ms: compared.halves,
    }
}

/// What of `compared` differs, in words.
fn different(compared: &[Compared], verdict: Verdict) -> Vec<String> {
    let several = compared.len() > 1;
    let of = |one: &Compared| {
        let place = if several { format!(" of {}", one.pass) } else { String::new() };
        one.with(verdict).iter().map(|m| format!("{}{place}", m.words().trim_end_matches(" ms"))).collect::<Vec<_>>()
    };
    compared.iter().flat_map(of).collect()
}

impl Said {
    /// What `compared` comes to, and the same in words; `a` and `b` are the endpoints' names.
    fn of(compared: &[Compared], [a, b]: [&str; 2]) -> (Said, String) {
        let (better, worse) = (different(compared, Verdict::Better), different(compared, Verdict::Worse));
        let refused = compared.iter().any(|one| !one.refusals.is_empty()) || compared.is_empty();
        let any = |verdict| compared.iter().any(|one| !one.with(verdict).is_empty());
        let verdict = match (refused, better.is_empty(), worse.is_empty()) {
            (true, _, _) => Said::Refused,
            (_, false, false) => Said::Mixed,
            (_, false, true) => Said::Better,
            (_, true, false) => Said::Worse,
            _ if any(Verdict::NoDifferenceShown) => Said::NoDifferenceShown,
            _ => Said::TooFew,
        };
        let says = match verdict {
            Said::Better => format!("{b} is better: {}", better.join(", ")),
            Said::Worse => format!("{b} is worse: {}", worse.join(", ")),
            Said::Mixed => format!("{b} is better in {}, and worse in {}", better.join(", "), worse.join(", ")),
            Said::NoDifferenceShown => format!("no difference shown between {a} and {b}"),
            Said::TooFew => format!("too few: {CONVERSATIONS_MIN} conversations and more are needed for a verdict"),
            Said::Refused if compared.is_empty() => format!("not compared: no pass was run at both {a} and {b}"),
            Said::Refused => {
                let mut why: Vec<String> =
                    compared.iter().flat_map(|one| one.refusals.iter().map(ToString::to_string)).collect();
                why.dedup();
                format!("not compared: {}", why.join("; "))
            }
        };
        (verdict, says)
    }
}

impl ComparisonReport {
    /// Of the passes of a session, or of files.
    pub(super) fn of(
        args: &CompareArgs,
        seed: Seed,
        passes: &[Pass],
        sides: Sides,
        [a, b]: [Named; 2],
    ) -> ComparisonReport {
        let terms = Terms { margin: args.margin() / 100.0, lag_limit: args.lag_limit(), seed, draws: DRAWS };
        let is_floor = |pass: &&Pass| pass.id.name.starts_with(A_A);
        let (floor, others): (Vec<&Pass>, Vec<&Pass>) = passes.iter().partition(is_floor);
        let floor = sides.floor.map(|sides| compare(&floor, sides, &terms));
        let mut compared = compare(&others, sides.pair, &terms);
        if let Some(floor) = &floor {
            let of = [different(floor, Verdict::Better), different(floor, Verdict::Worse)].concat();
            if !of.is_empty() {
                let refusal = Refusal::NotSteady { name: a.name.clone(), of: of.join(", ") };
                compared.iter_mut().for_each(|one| one.refuse(refusal.clone()));
            }
        }
        let (verdict, says) = Said::of(&compared, [&a.name, &b.name]);
        let level = compared.iter().flat_map(|one| &one.differences).map(|(_, found)| found.level).next();
        let mut doubts = Vec::new();
        for one in &compared {
            if one.blocks < 2 && one.refusals.is_empty() {
                doubts.push(format!(
                    "{}: {} and {} were measured one after the other, not in turn: what else changed meanwhile is in the difference, and \
                     not in its interval, which is over conversations alone",
                    one.pass, a.name, b.name
                ));
            }
            if let Some([first, second]) = one.halves
                && first > 0.0
                && (second / first - 1.0).abs() > 0.2
            {
                doubts.push(format!(
                    "{}: {} itself went from {first:.1} to {second:.1} ms to the first token from the first half of its blocks to the \
                     second",
                    one.pass, a.name
                ));
            }
        }
        let names = [a.name.as_str(), b.name.as_str()];
        let again = format!("{} again", a.name);
        let noise_floor = floor.map(|floor| floor.iter().map(|one| told(one, [&a.name, &again])).collect());
        let compared = compared.iter().map(|one| told(one, names)).collect();
        ComparisonReport {
            a,
            b,
            level: level.unwrap_or(0.0),
            margin_percent: args.margin(),
            noise_floor,
            compared,
            verdict,
            says,
            doubts,
        }
    }

    /// The exit code that follows.
    pub fn exit(&self) -> Exit {
        match self.verdict {
            Said::Worse | Said::Mixed | Said::Refused => Exit::No,
            Said::Better | Said::NoDifferenceShown | Said::TooFew => Exit::Done,
        }
    }

    /// What is shown of it.
    pub fn sections(&self) -> Vec<Section> {
        let mut sections = Vec::new();
        for one in self.noise_floor.iter().flatten() {
            let mut section =
                one.section(format!("{} against itself: {}", self.a.name, one.pass.trim_start_matches(A_A)));
            section.text.push(format!("What an endpoint differs by from itself is noise. Here: {}", one.says));
            sections.push(section);
        }
        for one in &self.compared {
            let mut section = one.section(format!("{} against {}: {}", self.b.name, self.a.name, one.pass));
            if self.compared.len() > 1 || !one.refusals.is_empty() {
                section.text.push(format!("Verdict of {}: {}", one.pass, one.says));
            }
            sections.push(section);
        }
        let mut last = Section::new("Verdict");
        last.text.push(format!("{} is {}, {} is {}", self.a.name, self.a.target, self.b.name, self.b.target));
        if self.level > 0.0 {
            last.text.push(format!(
                "Paired by conversation and turn; intervals of {:.4} % by bootstrap over conversations and by blocks, whichever is wider, so \
                 that all together are wrong in at most 5 of 100 comparisons; less than {} % of {}'s mean is no difference.",
                self.level * 100.0,
                self.margin_percent,
                self.a.name
            ));
        }
        last.text.extend(self.doubts.iter().map(|doubt| format!("doubt: {doubt}")));
        last.text.push(format!("Verdict: {}", self.says));
        sections.push(last);
        sections
    }
}

impl ComparedReport {
    fn section(&self, title: String) -> Section {
        let mut section = Section::new(&title);
        let head = ["", "A", "B", "B - A", "%", "from", "to", "verdict"];
        let title = format!("{title} ({} pairs in {} blocks)", self.pairs, self.blocks);
        let mut sheet = Sheet::new(&title, &head).words(7);
        for found in &self.differences {
            sheet.row([
                found.words.to_owned(),
                format!("{:.2}", found.a),
                format!("{:.2}", found.b),
                format!("{:+.2}", found.difference),
                found.percent.map_or("-".to_owned(), |percent| format!("{percent:+.1}")),
                format!("{:+.2}", found.low),
                format!("{:+.2}", found.high),
                found.verdict.words().to_owned(),
            ]);
        }
        section.sheets.push(sheet);
        let share = |found: &DifferenceReport| found.percent.filter(|_| found.a > 0.0).is_some();
        let shown: Vec<&DifferenceReport> = self.differences.iter().filter(|found| share(found)).collect();
        let of = |(at, found): (usize, &&DifferenceReport)| {
            let percent = |value: f64| value / found.a * 100.0;
            (at as f64, percent(found.low), percent(found.difference), percent(found.high))
        };
        let names = shown.iter().map(|found| found.words.trim_end_matches(" ms").to_owned()).collect();
        let plot = Plot::new("Difference, % of A, with its interval", Axis::named("", names), Axis::close("%"));
        section.plots.push(plot.with(Series::whiskers("B - A", 0, shown.iter().enumerate().map(of).collect())));
        section
    }
}
