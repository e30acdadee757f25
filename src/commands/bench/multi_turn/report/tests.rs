//! The page and the text of a made-up run.

use std::time::Duration;

use crate::commands::bench::measured::{ClientHost, MeasuredServer, MeasuredSystem};
use crate::commands::bench::multi_turn::report::{Identity, PassReport, RunReport};
use crate::commands::bench::multi_turn::{html, text};
use crate::engine::base::HostPort;
use crate::engine::load::answer::{CachedTokens, Dialect, ModelAnswer};
use crate::engine::load::plan::OfferedLoad;
use crate::engine::load::session::{PassId, PassResult};
use crate::engine::load::target::{Exchange, ExchangeOutcome, LoadTarget};
use crate::engine::load::{TimedRequest, Turn};

const NAME: &str = "<b>model & co</b>";

/// A request of a conversation with `prompt` tokens, of which `host` are cached in L2.
fn request(number: u32, prompt: u32, host: u32) -> TimedRequest {
    let ms = |ms: u32| Duration::from_millis(u64::from(ms));
    let start = 100 * number;
    let first = start + 10 + (prompt - host) / 10;
    TimedRequest {
        turn: Turn { conversation: number / 2, index: number % 2 },
        planned: ms(start),
        eligible_at: ms(start),
        max_tokens: 5,
        possible: None,
        own_tokens: None,
        exchange: Exchange {
            begun: ms(start),
            wrote: ms(start + 1),
            first_token: Some(ms(first)),
            last_token: Some(ms(first + 40)),
            arrived: 5,
            answer: ModelAnswer {
                prompt_tokens: Some(prompt),
                completion_tokens: Some(5),
                cached_tokens: Some(host),
                cached: Some(CachedTokens { device: 0, host, storage: 0, backend: None }),
                ..ModelAnswer::default()
            },
            outcome: ExchangeOutcome::Ok,
            ..Exchange::without_connection(ms(start), ms(first + 41), String::new())
        },
    }
}

fn report(requests: impl Iterator<Item = TimedRequest>) -> RunReport {
    let id = PassId { side: 0, side_name: "A".to_owned(), name: "run".to_owned(), block: 0 };
    let mut pass = PassResult::new(id);
    requests.for_each(|request| pass.add(&request, false));
    let target = LoadTarget::new(HostPort::new("127.0.0.1", 1), Dialect::Generate);
    let passes = vec![PassReport::of(&[("A".to_owned(), target)], &OfferedLoad::default(), None, &pass)];
    let mut server = MeasuredServer::recorded("A", "http://127.0.0.1:1");
    server.queried = true;
    server.description.model = Some(NAME.to_owned());
    let client = ClientHost { kernel: Some("6.1.0".to_owned()), processor: None, memory_bytes: Some(8 << 30) };
    RunReport {
        schema: "mcctl.bench.multi-turn/1",
        run: Identity {
            version: "0.0.0".to_owned(),
            command: vec!["mcctl".to_owned(), "bench".to_owned(), "multi-turn".to_owned()],
            started: "2026-11-29T07:00:00Z".to_owned(),
            processors: 2,
            seed: 1,
        },
        measured: Some(MeasuredSystem { servers: vec![server], client }),
        passes,
        comparison: None,
        sweep: None,
        kep74: None,
        scenario: None,
        caveats: Vec::new(),
        serving: None,
        plot: false,
        legend: false,
        is_incomplete: false,
    }
}

/// Thirty computed prompts of different lengths, each followed by one that is mostly cached.
fn conversations() -> impl Iterator<Item = TimedRequest> {
    (0..60).map(|number| {
        let prompt = 100 + 16 * (number / 2);
        if number % 2 == 0 { request(number, prompt, 0) } else { request(number, 2 * prompt, 2 * prompt - 20) }
    })
}

/// Returns the plots of a page.
fn plots(page: &str) -> Vec<&str> {
    page.split("<figure>").skip(1).filter_map(|rest| rest.split("</figure>").next()).collect()
}

#[test]
fn page_and_text_are_reviewed() {
    let report = report(conversations());
    insta::with_settings!({prepend_module_to_snapshot => false, omit_expression => true}, {
        insta::assert_snapshot!("multi_turn_page", html::page(&report));
        insta::assert_snapshot!("multi_turn_text", text::render(&report));
    });
}

#[test]
fn every_plot_has_points_units_and_the_same_text_size() {
    let odd = |number: u32| request(number, u32::MAX, u32::MAX);
    let failed = |number: u32| {
        let mut failed = request(number, 100, 0);
        failed.exchange.outcome = ExchangeOutcome::Broken(NAME.to_owned());
        failed
    };
    let unreported = |number: u32| {
        let mut silent = request(number, 100, 0);
        silent.exchange.answer = ModelAnswer::default();
        silent
    };
    let runs: [(usize, Vec<TimedRequest>); 7] = [
        (8, conversations().collect()),
        (0, vec![request(0, 100, 0)]),
        (0, Vec::new()),
        (0, (0..9).map(failed).collect()),
        (0, (0..9).map(unreported).collect()),
        (0, (0..9).map(odd).collect()),
        // One turn.
        (0, (0..9).map(|number| request(2 * number, 100, 0)).collect()),
    ];
    for (least, requests) in runs {
        let report = report(requests.into_iter());
        let page = html::page(&report);
        assert!(!page.contains("NaN") && !page.contains(NAME) && page.contains("What was measured"), "{page}");
        assert!(plots(&page).len() >= least, "{}", plots(&page).len());
        for plot in plots(&page) {
            let marks = ["<polyline", "<polygon", "<path fill=\"none\""].map(|mark| plot.matches(mark).count());
            assert!(marks.iter().sum::<usize>() > 0, "an empty plot: {plot}");
            assert!(plot.contains("width=\"372\"") && !plot.contains("inf"), "{plot}");
            assert_eq!(plot.matches("fill=\"var(--soft").count(), 2, "both axes are labelled: {plot}");
        }
        assert!(!text::render(&report).contains("NaN"));
    }
}

#[test]
fn verdict_and_tables_are_the_same_in_text_page_and_document() {
    let report = report(conversations());
    let page = html::page(&report);
    let text = text::render(&report).replace("\n  ", " ");
    let document = serde_json::to_value(&report).expect("a document");
    let saved = &document["passes"][0]["sources"]["latency_saved"];
    let mean = format!("{:.1} ms of TTFT", saved["mean_ms"].as_f64().expect("an estimate"));
    assert_eq!(saved["kind"], "estimate");
    for shown in [mean.as_str(), "30 of 60 requests were mostly served from the cache", "8 GiB memory"] {
        assert!(page.contains(shown) && text.contains(shown), "{shown}: {text}");
    }
    for section in report.sections() {
        for row in section.tables.iter().flat_map(|table| &table.rows).flatten() {
            let words = row.split_whitespace().all(|word| text.contains(word));
            assert!(words && page.contains(&crate::commands::cli::svg::escaped(row)), "{row}");
        }
    }
}
