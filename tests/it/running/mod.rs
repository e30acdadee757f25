//! `doctor` against running clusters and SGLang servers: processes of mcctl and of upstream, and
//! servers that replay recorded responses.

mod cluster;
mod command;
mod serving;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex};

use mcctl::engine::base::HostPort;
use mcctl::engine::check::{CheckReport, CheckStatus, Finding, Severity};
use mcctl::engine::env::RealEnv;
use mcctl::engine::http::{self, Handler, HttpLimits, HttpRequest, HttpServer, Response, StatusCode, answer};

/// An HTTP server that replays responses by path and records the requested paths.
pub struct Recorded {
    answers: BTreeMap<String, (u16, String)>,
    asked: Mutex<Vec<String>>,
}

impl Handler for Recorded {
    async fn handle(&self, request: HttpRequest) -> Response {
        self.asked.lock().unwrap().push(request.path().to_owned());
        match self.answers.get(request.path()) {
            Some((status, body)) => answer(StatusCode::from_u16(*status).unwrap(), "application/json", body.clone()),
            None => answer(StatusCode::NOT_FOUND, "", "404 Not Found"),
        }
    }
}

impl Recorded {
    /// Starts a server with these 200 responses.
    pub async fn start(answers: &[(&str, String)]) -> (HttpServer, Arc<Recorded>) {
        let answers = answers.iter().map(|(path, body)| ((*path).to_owned(), (200, body.clone()))).collect();
        let handler = Arc::new(Recorded { answers, asked: Mutex::default() });
        let at = HostPort::new("127.0.0.1", 0);
        (http::start(RealEnv::new(), &at, HttpLimits::SMALL, handler.clone()).await.unwrap(), handler)
    }

    /// Whether `path` was requested.
    pub fn queried(&self, path: &str) -> bool {
        self.asked.lock().unwrap().iter().any(|asked| asked == path)
    }
}

/// The report of one check.
#[track_caller]
pub fn of<'a>(reports: &'a [CheckReport], id: &str) -> &'a CheckStatus {
    &reports.iter().find(|report| report.check.id == id).unwrap_or_else(|| panic!("no report of {id}")).status
}

/// Asserts that the check passed, and returns its observation.
#[track_caller]
pub fn passed<'a>(reports: &'a [CheckReport], id: &str) -> &'a str {
    match of(reports, id) {
        CheckStatus::Passed(text) => text,
        other => panic!("{id}: {other:?}"),
    }
}

/// Asserts that the check has a finding of `severity` that contains `part`, and returns it.
#[track_caller]
pub fn found<'a>(reports: &'a [CheckReport], id: &str, severity: Severity, part: &str) -> &'a Finding {
    let CheckStatus::Found(findings) = of(reports, id) else { panic!("{id}: {:?}", of(reports, id)) };
    let finding = findings.iter().find(|f| f.severity == severity && f.finding.contains(part));
    finding.unwrap_or_else(|| panic!("{id}: {findings:?}"))
}

/// Asserts that no finding is above `info`.
#[track_caller]
pub fn is_well(reports: &[CheckReport]) {
    let bad: Vec<&Finding> =
        reports.iter().flat_map(CheckReport::findings).filter(|finding| finding.severity > Severity::Info).collect();
    assert!(bad.is_empty(), "{bad:#?}");
}

/// Asserts that every text is one line without a full stop.
#[track_caller]
pub fn is_readable(reports: &[CheckReport]) {
    for finding in reports.iter().flat_map(CheckReport::findings) {
        for text in [&finding.finding, &finding.evidence, &finding.remedy] {
            assert!(!text.is_empty() && !text.ends_with('.') && !text.contains('\n'), "{finding:?}");
        }
    }
}

/// Runs `work` on a separate runtime, for tests that start processes with blocking code.
pub fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(work)
}
