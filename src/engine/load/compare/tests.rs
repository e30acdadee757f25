//! Tests for the comparison, with simulated measurements.

use super::*;
use crate::answer::ModelAnswer;
use crate::session::PassId;
use crate::target::{Exchange, ExchangeOutcome};
use crate::{Distribution, TimedRequest};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution as _, Normal};

/// Calls [`super::compare`] with owned passes.
fn compare(passes: &[PassResult], sides: [usize; 2], terms: &CompareOptions) -> Vec<Comparison> {
    super::compare(&passes.iter().collect::<Vec<_>>(), sides, terms)
}

const TERMS: CompareOptions = CompareOptions {
    margin: 0.01,
    primary: Measure::Ttft,
    lag_limit: Duration::from_millis(5),
    seed: Seed(1),
    draws: 400,
};

fn ms(ms: f64) -> Duration {
    Duration::from_secs_f64(ms.max(0.0) / 1e3)
}

/// A request with a TTFT of `ttft` ms and seven further tokens, `gap` ms apart.
fn record(turn: Turn, ttft: f64, gap: f64) -> TimedRequest {
    let first = ms(ttft);
    let last = ms(ttft + 7.0 * gap);
    TimedRequest {
        turn,
        planned: Duration::ZERO,
        eligible_at: Duration::ZERO,
        max_tokens: 8,
        possible: None,
        own_tokens: None,
        exchange: Exchange {
            wrote: ms(0.1),
            first_token: Some(first),
            last_token: Some(last),
            arrived: 8,
            answer: ModelAnswer {
                prompt_tokens: Some(100 * (turn.index + 1)),
                completion_tokens: Some(8),
                cached_tokens: Some(96 * turn.index),
                ..ModelAnswer::default()
            },
            outcome: ExchangeOutcome::Ok,
            ..Exchange::without_connection(ms(0.1), last, String::new())
        },
    }
}

fn pass(side: usize, block: u32, records: impl IntoIterator<Item = TimedRequest>) -> PassResult {
    let names = ["A", "B"];
    let mut pass = PassResult::new(PassId { side, side_name: names[side].to_owned(), name: "run".to_owned(), block });
    records.into_iter().for_each(|record| pass.add(&record, true));
    pass
}

/// A simulated comparison. Conversations differ in their base latency, latencies have a long tail,
/// each pass has its own disturbance, and latencies drift from pass to pass. TTFT at B is `factor`
/// times the TTFT at A.
fn measured(factor: f64, seed: u64) -> Vec<PassResult> {
    measured_in(48, 8, factor, seed)
}

/// [`measured`] with this many conversations and blocks.
fn measured_in(conversations: u32, number: u32, factor: f64, seed: u64) -> Vec<PassResult> {
    let mut rng = Seed(seed).generator("measured", 0);
    let mut draw = |law: &dyn Fn(&mut ChaCha8Rng) -> f64| law(&mut rng);
    let disturbance = Normal::new(1.0, 0.05).expect("a finite deviation");
    let tail = Distribution::Exponential { mean: 10.0 };
    let mut passes = Vec::new();
    let order = in_turn([0, 1], &blocks(conversations, number), |block, part| {
        let plan = crate::session::PassPlan {
            name: String::new(),
            block,
            part: part.clone(),
            pace: crate::Pace::Recorded,
            rules: crate::Rules::default(),
            duration: Duration::ZERO,
        };
        vec![crate::session::SessionStep::Pass(Box::new(plan))]
    });
    for (n, (side, step)) in order.into_iter().enumerate() {
        let crate::session::SessionStep::Pass(plan) = step else { panic!("passes only") };
        let slow = draw(&|rng| disturbance.sample(rng)) * (1.0 + 0.005 * n as f64);
        let mut records = Vec::new();
        for conversation in plan.part {
            // The base latency of a conversation is the same at both endpoints.
            let base = 60.0 + 40.0 * f64::from(conversation % 3);
            for index in 0..3 {
                let ttft = (base + draw(&|rng| tail.draw(rng))) * slow * if side == 1 { factor } else { 1.0 };
                let gap = (10.0 + 0.1 * draw(&|rng| tail.draw(rng))) * slow;
                records.push(record(Turn { conversation, index }, ttft, gap));
            }
        }
        passes.push(pass(side, plan.block, records));
    }
    passes
}

#[test]
fn endpoint_compared_with_itself_rarely_differs() {
    let mut wrong = 0;
    for seed in 0..100 {
        let found = &compare(&measured(1.0, seed), [0, 1], &TERMS)[0];
        assert!(found.refusals.is_empty(), "{found:?}");
        assert_eq!((found.blocks, found.pairs), (8, 144));
        wrong += usize::from(
            !found.with(DifferenceVerdict::Better).is_empty() || !found.with(DifferenceVerdict::Worse).is_empty(),
        );
    }
    // At most 5 % of the comparisons may report a difference: 5 of 100.
    assert!(wrong <= 5, "{wrong} of 100 comparisons report a difference in at least one of the five metrics");
}

/// Returns how many of `runs` comparisons show a difference in TTFT, and how many in any metric.
fn shown(runs: u64, of: impl Fn(u64) -> Vec<PassResult>) -> (usize, usize) {
    let mut count = (0, 0);
    for seed in 0..runs {
        let found = &compare(&of(seed), [0, 1], &TERMS)[0];
        assert!(found.refusals.is_empty(), "{found:?}");
        let is_shown = |(_, one): &(Measure, Difference)| {
            matches!(one.verdict, DifferenceVerdict::Better | DifferenceVerdict::Worse)
        };
        count.0 += usize::from(is_shown(&found.differences[0]));
        count.1 += usize::from(found.differences.iter().any(is_shown));
    }
    count
}

#[test]
fn plans_with_few_blocks_show_large_differences_and_no_false_ones() {
    for (conversations, blocks) in [(24, 1), (12, 2), (24, 4), (5, 1)] {
        let (_, wrong) = shown(100, |seed| measured_in(conversations, blocks, 1.0, seed));
        assert!(
            wrong <= 5,
            "{wrong} of 100 differ from themselves with {conversations} conversations in {blocks} blocks"
        );
        let (right, _) = shown(20, |seed| measured_in(conversations, blocks, 0.5, seed));
        assert!(right >= 19, "{right} of 20 are twice as fast with {conversations} conversations in {blocks} blocks");
    }
}

#[test]
fn a_late_generator_widens_ttft_and_e2e_and_hides_no_larger_difference() {
    let late = |factor: f64| {
        let mut passes = measured(factor, 1);
        for pass in &mut passes {
            let lag = if pass.id.side == 1 { ms(30.0) } else { ms(10.0) };
            pass.tally.lag = crate::LatencyHistogram::default();
            pass.tally.lag.record(lag, 100);
        }
        let sides = ComparedSides::of(2);
        EndpointComparison::of(&passes, sides, ["A", "B"], &TERMS)
    };
    let on_time = &compare(&measured(0.4, 1), [0, 1], &TERMS)[0];
    let found = late(0.4);
    assert_eq!(found.compared[0].verdict_on(Measure::Ttft), Some(DifferenceVerdict::Better));
    for (at, (measure, one)) in found.compared[0].differences.iter().enumerate() {
        let expected = if matches!(measure, Measure::Ttft | Measure::E2e) { 30.0 } else { 0.0 };
        assert!((one.bias - expected).abs() < 0.1, "{measure:?}: {one:?}");
        let before = on_time.differences[at].1;
        assert!((one.high - before.high - expected).abs() < 0.2 && (before.low - one.low - expected).abs() < 0.2);
    }
    let ids: Vec<&str> = found.caveats.iter().map(crate::LoadCaveat::id).collect();
    assert_eq!(ids, ["lag-in-comparison"; 2]);
    // A difference of about 20 ms may be due to the lag.
    let verdict = late(0.8).compared[0].verdict_on(Measure::Ttft);
    assert_eq!(verdict, Some(DifferenceVerdict::NoDifferenceShown));
}

#[test]
fn the_primary_metric_comes_first_and_has_the_lowest_level() {
    for primary in MEASURES {
        let found = &compare(&measured(0.7, 1), [0, 1], &CompareOptions { primary, ..TERMS })[0];
        assert_eq!((found.differences[0].0, found.differences.len()), (primary, 5));
        let levels: Vec<f64> = found.differences.iter().map(|(_, one)| one.level).collect();
        assert!((levels[0] - 0.975).abs() < 1e-12 && levels[1..].iter().all(|level| (level - 0.99375).abs() < 1e-12));
    }
}

#[test]
fn few_failures_are_excluded_and_many_are_refused() {
    let with = |failed: u32| {
        let mut passes = measured(0.5, 1);
        let mut left = failed;
        for pass in passes.iter_mut().filter(|pass| pass.id.side == 1) {
            for figure in pass.figures.iter_mut().filter(|figure| figure.turn.index == 2) {
                figure.well = left == 0;
                left = left.saturating_sub(1);
            }
        }
        EndpointComparison::of(&passes, ComparedSides::of(2), ["A", "B"], &TERMS)
    };
    let few = with(7);
    assert_eq!((few.compared[0].excluded, few.compared[0].pairs), ([7, 0], 137));
    assert_eq!(few.compared[0].verdict_on(Measure::Ttft), Some(DifferenceVerdict::Better));
    assert!(few.caveats.iter().any(|caveat| caveat.id() == "requests-excluded"), "{:?}", few.caveats);
    let many = with(8);
    assert!(matches!(many.compared[0].refusals[..], [ComparisonRefusal::Failed { a: 8, b: 0, .. }]));
    assert_eq!(many.verdict, ComparisonVerdict::Refused);
}

#[test]
fn first_prompts_that_an_earlier_run_cached_are_a_caveat() {
    let mut passes = measured(1.0, 1);
    for pass in passes.iter_mut().filter(|pass| pass.id.side == 1) {
        for figure in pass.figures.iter_mut().filter(|figure| figure.turn.index == 0) {
            figure.expected = Some(0);
            figure.cached = 64;
        }
    }
    let found = EndpointComparison::of(&passes, ComparedSides::of(2), ["A", "B"], &TERMS);
    assert_eq!((found.compared[0].warm, found.compared[0].first_prompts), ([0, 48], 48));
    assert!(found.caveats.iter().any(|caveat| caveat.id() == "first-prompts-cached"), "{:?}", found.caveats);
}

#[test]
fn faster_endpoint_is_better_and_slower_one_is_worse() {
    let verdicts = |factor: f64, verdict| {
        let found = (0..20)
            .filter(|seed| compare(&measured(factor, *seed), [0, 1], &TERMS)[0].with(verdict).contains(&Measure::Ttft));
        found.count()
    };
    assert!(verdicts(0.7, DifferenceVerdict::Better) >= 19 && verdicts(1.3, DifferenceVerdict::Worse) >= 19);
    let found = &compare(&measured(0.7, 1), [0, 1], &TERMS)[0];
    assert!(found.with(DifferenceVerdict::Worse).is_empty(), "{found:?}");
    let halves = found.halves.expect("eight blocks");
    assert!(halves[1] > halves[0], "it drifts: {halves:?}");
}

fn few(side: usize, change: impl Fn(&mut TimedRequest)) -> PassResult {
    let turns = (0..6).flat_map(|conversation| (0..2).map(move |index| Turn { conversation, index }));
    let records = turns.map(|turn| {
        let mut record = record(turn, 50.0, 5.0);
        change(&mut record);
        record
    });
    pass(side, 0, records)
}

fn refusals(change: impl Fn(&mut TimedRequest)) -> Vec<ComparisonRefusal> {
    let found = compare(&[few(0, |_| ()), few(1, change)], [0, 1], &TERMS).remove(0);
    assert!(found.refusals.is_empty() || found.differences.is_empty(), "{found:?}");
    found.refusals
}

#[test]
fn different_work_is_not_compared() {
    assert_eq!(refusals(|_| ()), []);
    let failed = refusals(|record| {
        if record.turn == (Turn { conversation: 3, index: 1 }) {
            record.exchange.outcome = ExchangeOutcome::CutOff;
        }
    });
    // One of twelve.
    assert!(matches!(failed[..], [ComparisonRefusal::Failed { a: 1, b: 0, .. }]), "{failed:?}");
    let shorter = refusals(|record| record.exchange.answer.completion_tokens = Some(7));
    assert!(
        matches!(shorter[..], [ComparisonRefusal::Tokens { of: "received", a: 96, b: 84, percent: 12.5, .. }]),
        "{shorter:?}"
    );
    let other_prompt = refusals(|record| {
        if record.turn == (Turn { conversation: 0, index: 0 }) {
            record.exchange.answer.prompt_tokens = Some(101);
        }
    });
    assert!(matches!(other_prompt[..], [ComparisonRefusal::Prompts { count: 1, of: 6, .. }]), "{other_prompt:?}");
    assert_eq!(
        refusals(|record| record.exchange.wrote = ms(9.0)),
        [],
        "a late generator does not prevent a comparison"
    );
    let texts: Vec<String> =
        [failed, shorter, other_prompt].into_iter().flatten().map(|refusal| refusal.to_string()).collect();
    insta::assert_snapshot!(texts.join("\n"));
}

#[test]
fn incomplete_blocks_are_skipped_and_names_are_compared_separately() {
    let mut passes = measured(1.0, 1);
    passes.last_mut().expect("some").ran.stopped = true;
    let found = compare(&passes, [0, 1], &TERMS);
    assert_eq!((found.len(), found[0].blocks), (1, 7));
    for pass in &mut passes[8..] {
        pass.id.name = "repeat".to_owned();
    }
    let found = compare(&passes, [0, 1], &TERMS);
    assert_eq!(
        found.iter().map(|one| (one.pass.as_str(), one.blocks)).collect::<Vec<_>>(),
        [("run", 4), ("repeat", 3)]
    );
    assert!((found[0].differences[0].1.level - 0.9875).abs() < 1e-12, "two intervals of the primary metric");
    passes.retain(|pass| pass.id.side == 0);
    assert!(compare(&passes, [0, 1], &TERMS).is_empty());
}
