//! What `doctor` says of running clusters and SGLang servers: real processes of either make, and false ones that answer what was
//! recorded.

mod cluster;
mod command;
mod serving;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex};

use mcctl::engine::base::HostPort;
use mcctl::engine::check::{Finding, Report, Severity, Status};
use mcctl::engine::env::RealEnv;
use mcctl::engine::http::{self, Handler, HttpLimits, HttpRequest, HttpServer, Response, StatusCode, answer};

/// An HTTP server that answers a path with what it was told, and remembers the paths that it was asked for.
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
    /// Start one with these answers of 200.
    pub async fn start(answers: &[(&str, String)]) -> (HttpServer, Arc<Recorded>) {
        let answers = answers.iter().map(|(path, body)| ((*path).to_owned(), (200, body.clone()))).collect();
        let handler = Arc::new(Recorded { answers, asked: Mutex::default() });
        let at = HostPort::new("127.0.0.1", 0);
        (http::start(RealEnv::new(), &at, HttpLimits::SMALL, handler.clone()).await.unwrap(), handler)
    }

    /// Was `path` asked for?
    pub fn was_asked(&self, path: &str) -> bool {
        self.asked.lock().unwrap().iter().any(|asked| asked == path)
    }
}

/// The report of one check.
#[track_caller]
pub fn of<'a>(reports: &'a [Report], id: &str) -> &'a Status {
    &reports.iter().find(|report| report.check.id == id).unwrap_or_else(|| panic!("no report of {id}")).status
}

/// The check passed; gives what was seen.
#[track_caller]
pub fn passed<'a>(reports: &'a [Report], id: &str) -> &'a str {
    match of(reports, id) {
        Status::Passed(text) => text,
        other => panic!("{id}: {other:?}"),
    }
}

/// The check found something of `severity` whose finding contains `part`.
#[track_caller]
pub fn found<'a>(reports: &'a [Report], id: &str, severity: Severity, part: &str) -> &'a Finding {
    let Status::Found(findings) = of(reports, id) else { panic!("{id}: {:?}", of(reports, id)) };
    let finding = findings.iter().find(|f| f.severity == severity && f.finding.contains(part));
    finding.unwrap_or_else(|| panic!("{id}: {findings:?}"))
}

/// Nothing above `info` was found.
#[track_caller]
pub fn is_well(reports: &[Report]) {
    let bad: Vec<&Finding> =
        reports.iter().flat_map(Report::findings).filter(|finding| finding.severity > Severity::Info).collect();
    assert!(bad.is_empty(), "{bad:#?}");
}

/// Every text fits a line and ends without a full stop.
#[track_caller]
pub fn is_readable(reports: &[Report]) {
    for finding in reports.iter().flat_map(Report::findings) {
        for text in [&finding.finding, &finding.evidence, &finding.remedy] {
            assert!(!text.is_empty() && !text.ends_with('.') && !text.contains('\n'), "{finding:?}");
        }
    }
}

/// On a runtime of its own, for tests whose processes are started by blocking code.
pub fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(work)
}
