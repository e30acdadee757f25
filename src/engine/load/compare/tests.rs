use super::*;
use crate::engine::load::answer::Answer;
use crate::engine::load::session::PassId;
use crate::engine::load::target::{Exchange, Outcome};
use crate::engine::load::{Distribution, Record};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution as _, Normal};

/// The module's, with passes of our own.
fn compare(passes: &[Pass], sides: [usize; 2], terms: &Terms) -> Vec<Compared> {
    super::compare(&passes.iter().collect::<Vec<_>>(), sides, terms)
}

const TERMS: Terms = Terms { margin: 0.01, lag_limit: Duration::from_millis(5), seed: Seed(1), draws: 400 };

fn ms(ms: f64) -> Duration {
    Duration::from_secs_f64(ms.max(0.0) / 1e3)
}

/// A request whose first token took `ttft` ms and whose other seven took `gap` ms each.
fn record(turn: Turn, ttft: f64, gap: f64) -> Record {
    let (first, last) = (ms(ttft), ms(ttft + 7.0 * gap));
    Record {
        turn,
        planned: Duration::ZERO,
        free: Duration::ZERO,
        max_tokens: 8,
        expected: None,
        exchange: Exchange {
            wrote: ms(0.1),
            first_token: Some(first),
            last_token: Some(last),
            arrived: 8,
            answer: Answer {
                prompt_tokens: Some(100 * (turn.index + 1)),
                completion_tokens: Some(8),
                cached_tokens: Some(96 * turn.index),
                ..Answer::default()
            },
            outcome: Outcome::Ok,
            ..Exchange::without_connection(ms(0.1), last, String::new())
        },
    }
}

fn pass(side: usize, block: u32, records: impl IntoIterator<Item = Record>) -> Pass {
    let names = ["A", "B"];
    let mut pass = Pass::new(PassId { side, side_name: names[side].to_owned(), name: "run".to_owned(), block });
    records.into_iter().for_each(|record| pass.add(&record, true));
    pass
}

/// A comparison as it would be measured: conversations of two levels, requests with tails, a disturbance of each pass of its own and
/// a drift from each to the next; B takes `factor` times as long to its first tokens.
fn measured(factor: f64, seed: u64) -> Vec<Pass> {
    let mut rng = Seed(seed).generator("measured", 0);
    let mut draw = |law: &dyn Fn(&mut ChaCha8Rng) -> f64| law(&mut rng);
    let disturbance = Normal::new(1.0, 0.05).expect("a finite deviation");
    let tail = Distribution::Exponential { mean: 10.0 };
    let mut passes = Vec::new();
    let order = in_turn([0, 1], &blocks(48, 8), |block, part| {
        let plan = crate::engine::load::session::PassPlan {
            name: String::new(),
            block,
            part: part.clone(),
            pace: crate::engine::load::Pace::Recorded,
            rules: crate::engine::load::Rules::default(),
            duration: Duration::ZERO,
        };
        vec![crate::engine::load::session::Step::Pass(Box::new(plan))]
    });
    for (n, (side, step)) in order.into_iter().enumerate() {
        let crate::engine::load::session::Step::Pass(plan) = step else { panic!("passes only") };
        let slow = draw(&|rng| disturbance.sample(rng)) * (1.0 + 0.005 * n as f64);
        let mut records = Vec::new();
        for conversation in plan.part {
            // What a conversation is like is the same at both.
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
fn an_endpoint_compared_with_itself_shows_no_difference_nearly_always() {
    let mut wrong = 0;
    for seed in 0..200 {
        let found = &compare(&measured(1.0, seed), [0, 1], &TERMS)[0];
        assert!(found.refusals.is_empty(), "{found:?}");
        assert_eq!((found.blocks, found.pairs), (8, 144));
        wrong += usize::from(!found.with(Verdict::Better).is_empty() || !found.with(Verdict::Worse).is_empty());
    }
    // At most 5 of 100 are promised; 10 of 200.
    assert!(wrong <= 10, "{wrong} of 200 in any of five figures");
}

#[test]
fn an_endpoint_that_answers_sooner_is_better_and_one_that_answers_later_is_worse() {
    let verdicts = |factor: f64, verdict| {
        let found = (0..20)
            .filter(|seed| compare(&measured(factor, *seed), [0, 1], &TERMS)[0].with(verdict).contains(&Measure::Ttft));
        found.count()
    };
    assert!(verdicts(0.7, Verdict::Better) >= 19 && verdicts(1.3, Verdict::Worse) >= 19);
    let found = &compare(&measured(0.7, 1), [0, 1], &TERMS)[0];
    assert!(found.with(Verdict::Worse).is_empty(), "{found:?}");
    let halves = found.halves.expect("eight blocks");
    assert!(halves[1] > halves[0], "it drifts: {halves:?}");
}

fn few(side: usize, change: impl Fn(&mut Record)) -> Pass {
    let turns = (0..6).flat_map(|conversation| (0..2).map(move |index| Turn { conversation, index }));
    let records = turns.map(|turn| {
        let mut record = record(turn, 50.0, 5.0);
        change(&mut record);
        record
    });
    pass(side, 0, records)
}

fn refusals(change: impl Fn(&mut Record)) -> Vec<String> {
    let found = compare(&[few(0, |_| ()), few(1, change)], [0, 1], &TERMS).remove(0);
    assert!(found.refusals.is_empty() || found.differences.is_empty(), "{found:?}");
    found.refusals.iter().map(ToString::to_string).collect()
}

#[test]
fn other_work_is_not_compared() {
    assert_eq!(refusals(|_| ()), [""; 0]);
    let failed = refusals(|record| {
        if record.turn == (Turn { conversation: 3, index: 1 }) {
            record.exchange.outcome = Outcome::CutOff;
        }
    });
    assert_eq!(failed.len(), 1);
    assert!(failed[0].starts_with("1 requests went well at A alone and 0 at B alone"), "{failed:?}");
    let shorter = refusals(|record| record.exchange.answer.completion_tokens = Some(7));
    assert_eq!(shorter, ["tokens received differ by 12.5 %: 96 at A, 84 at B; more than 1 % is other work"]);
    let other_words = refusals(|record| {
        if record.turn == (Turn { conversation: 0, index: 0 }) {
            record.exchange.answer.prompt_tokens = Some(101);
        }
    });
    assert_eq!(
        other_words,
        ["1 of 6 first prompts have other lengths at B than at A: other words, template or tokenizer"]
    );
    let late = refusals(|record| record.exchange.wrote = ms(9.0));
    assert!(late.len() == 1 && late[0].starts_with("the generator was 9.0 ms late with its requests to B"), "{late:?}");
}

#[test]
fn a_block_that_one_of_them_did_not_end_is_left_out_and_names_are_compared_apart() {
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
    assert!((found[0].differences[0].1.level - 0.995).abs() < 1e-12, "ten intervals");
    passes.retain(|pass| pass.id.side == 0);
    assert!(compare(&passes, [0, 1], &TERMS).is_empty());
}
