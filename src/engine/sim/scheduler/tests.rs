//! Tests for the scheduler, with storage that responds instantly.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::counters::PromptTokens;

const PAGE: u64 = 16;

fn config(device: u64, host: u64) -> Config {
    Config {
        page_size: PAGE,
        device_tokens: device * PAGE,
        host_tokens: host * PAGE,
        prefetch_threshold: 64,
        ..Config::small()
    }
}

fn ms(ms: u64) -> Mono {
    Mono::from_ms(ms)
}

fn arrive(scheduler: &mut Scheduler, now: Mono, ask: SimRequest) -> Result<u64, AdmissionError> {
    let prepared = HashedRequest::new(ask, scheduler.config())?;
    scheduler.arrive(now, prepared)
}

fn ask(prompt: Vec<u32>, output: u32) -> SimRequest {
    SimRequest { prompt, output: Some(output), stream: true }
}

fn prompt(of: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|at| of * 10_000 + at).collect()
}

/// Events for one request.
#[derive(Debug, Default)]
struct RequestLog {
    admission: Option<Admission>,
    tokens: Vec<Mono>,
    end: Option<(Mono, FinishReason)>,
}

/// Runs until nothing is left to do. Storage holds `stored` and responds instantly.
fn play(scheduler: &mut Scheduler, stored: &mut std::collections::HashSet<u64>) -> HashMap<u64, RequestLog> {
    let mut logs: HashMap<u64, RequestLog> = HashMap::new();
    let mut now = Mono::ZERO;
    loop {
        let effects = scheduler.effects();
        let quiet = effects.is_empty();
        for effect in effects {
            match effect {
                SchedulerEffect::First { id, at, admission } => {
                    let log = logs.entry(id).or_default();
                    log.admission = Some(admission);
                    log.tokens = vec![at];
                }
                SchedulerEffect::Token { id, at } => logs.entry(id).or_default().tokens.push(at),
                SchedulerEffect::Finished { id, at, end } => logs.entry(id).or_default().end = Some((at, end)),
                SchedulerEffect::Lookup { id, pages } => {
                    scheduler.lookup_done(now, id, pages.iter().take_while(|page| stored.contains(*page)).count());
                }
                SchedulerEffect::Read { id, pages } => scheduler.read(now, id, pages.len(), Duration::from_millis(1)),
                SchedulerEffect::Write { pages } => {
                    stored.extend(&pages);
                    scheduler.written(pages.len() as u64, 0, Duration::from_millis(1));
                }
            }
        }
        match scheduler.wake() {
            Some(at) => {
                now = now.max(at);
                scheduler.advance(now);
            }
            None if quiet => return logs,
            None => {}
        }
    }
}

/// Runs one request to completion. Returns its prompt tokens by source.
fn serve(scheduler: &mut Scheduler, stored: &mut std::collections::HashSet<u64>, ids: Vec<u32>, out: u32) -> [u64; 4] {
    let now = scheduler.wake().unwrap_or(ms(0));
    let id = arrive(scheduler, now, ask(ids, out)).expect("the request fits");
    let logs = play(scheduler, stored);
    let PromptTokens { device, host, storage, computed } =
        logs[&id].admission.as_ref().expect("the request ran").tokens;
    [device, host, storage, computed]
}

#[test]
fn steps_follow_the_cost_model_and_prefill_delays_decoding() {
    let mut scheduler = Scheduler::new(config(1000, 0));
    let first = arrive(&mut scheduler, ms(0), ask(prompt(1, 1000), 4)).unwrap();
    // 1,000 tokens at 20,000 per second, plus a 10 ms step.
    assert_eq!(scheduler.wake(), Some(ms(60)));
    let second = arrive(&mut scheduler, ms(5), ask(prompt(2, 400), 2)).unwrap();
    let logs = play(&mut scheduler, &mut Default::default());
    assert_eq!(logs[&first].tokens, [ms(60), ms(100), ms(110), ms(120)]);
    assert_eq!(logs[&second].tokens, [ms(90), ms(100)]);
    assert_eq!(logs[&second].end, Some((ms(100), FinishReason::Length)));
    let admission = logs[&second].admission.as_ref().unwrap();
    assert_eq!((admission.arrived, admission.started, admission.computed), (ms(5), ms(60), ms(90)));
}

#[test]
fn prompt_comes_from_device_host_and_storage_except_its_last_token() {
    let mut scheduler = Scheduler::new(Config { storage: true, ..config(20, 41) });
    let stored = &mut Default::default();
    assert_eq!(serve(&mut scheduler, stored, prompt(1, 128), 1), [0, 0, 0, 128]);
    assert_eq!(serve(&mut scheduler, stored, prompt(1, 128), 1), [112, 0, 0, 16]);
    assert_eq!(serve(&mut scheduler, stored, prompt(1, 129), 1), [128, 0, 0, 1]);
    for other in 10..13 {
        serve(&mut scheduler, stored, prompt(other, 128), 1);
    }
    assert_eq!(serve(&mut scheduler, stored, prompt(1, 129), 1), [0, 128, 0, 1]);
    for other in 20..26 {
        serve(&mut scheduler, stored, prompt(other, 128), 1);
    }
    assert_eq!(serve(&mut scheduler, stored, prompt(1, 129), 1), [0, 0, 128, 1]);
    assert!(scheduler.flush(ms(0)));
    assert_eq!(serve(&mut scheduler, stored, prompt(1, 129), 1), [0, 0, 128, 1]);
    assert_eq!(serve(&mut scheduler, stored, prompt(1, 60), 1), [48, 0, 0, 12]);
    // If fewer tokens than the threshold are missing, they are not fetched.
    assert!(scheduler.flush(ms(0)));
    assert_eq!(serve(&mut scheduler, stored, prompt(1, 60), 1), [0, 0, 0, 60]);
}

#[test]
fn answer_is_reused_in_the_next_prompt_except_its_last_token() {
    let mut scheduler = Scheduler::new(config(100, 0));
    let id = arrive(&mut scheduler, ms(0), ask(prompt(1, 30), 35)).unwrap();
    let answer = play(&mut scheduler, &mut Default::default())[&id].admission.as_ref().unwrap().answer.clone();
    let mut next = prompt(1, 30);
    next.extend(&answer[..]);
    next.extend([1, 2, 3]);
    // 64 of the 65 tokens were computed. They fill four pages.
    assert_eq!(serve(&mut scheduler, &mut Default::default(), next, 1), [64, 0, 0, 4]);
}

#[test]
fn requests_start_only_with_space_for_the_whole_answer() {
    let mut scheduler = Scheduler::new(config(10, 0));
    let ids: Vec<u64> = (1..=4).map(|of| arrive(&mut scheduler, ms(0), ask(prompt(of, 60), 20)).unwrap()).collect();
    scheduler.advance(ms(13));
    assert_eq!(
        scheduler.gauges(),
        SimGauges { running: 2, queued: 2, used: 128, available: 32, ..SimGauges::default() }
    );
    let logs = play(&mut scheduler, &mut Default::default());
    assert!(ids.iter().all(|id| logs[id].tokens.len() == 20));
    assert_eq!(scheduler.gauges().used, 0);
    assert_eq!(scheduler.counters().finished[1].requests, 4);
    let long = arrive(&mut scheduler, ms(0), ask(prompt(1, 160), 1)).unwrap_err();
    assert_eq!(long, AdmissionError::TooLong { prompt: 160, max: 159 });
    assert_eq!(arrive(&mut scheduler, ms(0), ask(Vec::new(), 1)), Err(AdmissionError::Empty));
}

#[test]
fn aborted_request_leaves_the_queue_at_once_and_the_batch_with_its_step() {
    let mut scheduler = Scheduler::new(Config { running_max: 1, ..config(100, 0) });
    let first = arrive(&mut scheduler, ms(0), ask(prompt(1, 60), 1000)).unwrap();
    let second = arrive(&mut scheduler, ms(0), ask(prompt(2, 60), 2)).unwrap();
    let third = arrive(&mut scheduler, ms(0), ask(prompt(3, 60), 2)).unwrap();
    scheduler.abort(ms(1), second);
    assert!(!scheduler.flush(ms(2)), "a request is running");
    scheduler.advance(ms(30));
    scheduler.abort(ms(30), first);
    let logs = play(&mut scheduler, &mut Default::default());
    assert_eq!(logs[&second].end, Some((ms(1), FinishReason::Abort)));
    assert_eq!(logs[&first].end.map(|end| end.1), Some(FinishReason::Abort));
    assert_eq!(logs[&third].tokens.len(), 2);
    let gauges = scheduler.gauges();
    assert_eq!((gauges.used, gauges.available + gauges.evictable, scheduler.counters().aborted), (0, 1600, 2));
    assert!(scheduler.flush(ms(40)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_request_ends_and_totals_are_consistent(
        asks in prop::collection::vec((0u32..4, 1u32..200, 1u32..60, 0u64..80, prop::option::of(0u64..200)), 1..40),
        device in 20u64..60, host in 0u64..80, storage: bool
    ) {
        let mut scheduler = Scheduler::new(Config { storage, running_max: 4, ..config(device, host) });
        let mut stored = std::collections::HashSet::new();
        let mut taken = Vec::new();
        let mut sums = PromptTokens::default();
        let mut now = ms(0);
        let mut gone = 0;
        let mut logs: HashMap<u64, RequestLog> = HashMap::new();
        for (of, tokens, output, wait, leaves) in asks {
            now = now + Duration::from_millis(wait);
            let Ok(id) = arrive(&mut scheduler, now, ask(prompt(of, tokens), output)) else { continue };
            taken.push(id);
            if let Some(after) = leaves {
                scheduler.abort(now + Duration::from_millis(after), id);
                now = now + Duration::from_millis(after);
            }
            if wait > 40 {
                logs.extend(play(&mut scheduler, &mut stored));
            }
        }
        logs.extend(play(&mut scheduler, &mut stored));
        prop_assert!(scheduler.ids().is_empty() && scheduler.requests.is_empty());
        for id in &taken {
            let Some((_, end)) = logs[id].end else { return Err(TestCaseError::fail("no end")) };
            gone += u64::from(end == FinishReason::Abort);
            if let (Some(admission), FinishReason::Length) = (&logs[id].admission, end) {
                sums.device += admission.tokens.device;
                sums.host += admission.tokens.host;
                sums.storage += admission.tokens.storage;
                sums.computed += admission.tokens.computed;
                prop_assert_eq!(admission.answer.len(), logs[id].tokens.len());
            }
        }
        let counters = scheduler.counters();
        prop_assert_eq!((counters.cached, counters.aborted), (sums, gone));
        prop_assert_eq!(counters.finished[1].requests + gone, taken.len() as u64);
        scheduler.tree.check(device, host);
    }
}

#[test]
fn extreme_cost_gives_a_step_that_does_not_end() {
    let mut config = config(64, 0);
    config.cost.prefill_tokens_per_s = 1e-300;
    let mut scheduler = Scheduler::new(config);
    arrive(&mut scheduler, ms(0), ask(prompt(1, 8), 1)).expect("the request fits");
    scheduler.advance(ms(0));
    assert!(scheduler.wake().is_some_and(|at| at > ms(86_400_000)));
}
