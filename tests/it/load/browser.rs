//! The page in a real browser, without a network.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::command::bench;
use super::server::Behaviour;

/// Names under which a browser is installed.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

fn browser() -> &'static str {
    let runs = |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|done| done.status.success());
    BROWSERS.into_iter().find(runs).expect("a browser (Debian package: chromium)")
}

/// What the browser makes of the page at `path`, and what it logs.
fn open(browser: &str, path: &Path, home: &Path) -> (String, String) {
    let done = Command::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
        ])
        .args([
            "--disable-component-update",
            "--disable-sync",
            "--disable-extensions",
            "--enable-logging=stderr",
            "--v=0",
        ])
        .arg(format!("--user-data-dir={}", home.join("profile").display()))
        .arg("--host-resolver-rules=MAP * ~NOTFOUND")
        .arg("--dump-dom")
        .arg(format!("file://{}", path.display()))
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{said}");
    (String::from_utf8_lossy(&done.stdout).into_owned(), said)
}

#[test]
#[ignore = "needs chromium"]
fn a_browser_shows_all_plots_and_asks_for_nothing_else() {
    let browser = browser();
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("report.html");
    let behaviour = |n: usize| match n % 11 {
        5 => Behaviour::Status(503, ""),
        _ => Behaviour::Answer(4, Duration::from_millis(5), Duration::from_millis(2)),
    };
    let html = format!("--html={}", page.display());
    let args = ["--num-clients=30", "--num-rounds=4", "--request-length=40", "--output-length=4", "--request-rate=200"];
    let (run, _) =
        bench(behaviour, &[&args[..], &[&html, "--extra-request-body={\"x\":\"<script>alert(1)</script>\"}"]].concat());
    assert!(run.code == 1, "some fail: {run:?}");
    let text = std::fs::read_to_string(&page).expect("it was written");
    for outside in ["<script", "src=", "href=", "url(", "@import"] {
        assert!(!text.contains(outside), "{outside} in the page");
    }
    let (dom, log) = open(browser, &page, folder.path());
    assert!(dom.matches("<svg").count() >= 6, "{} plots", dom.matches("<svg").count());
    assert!(dom.matches("<polyline").count() >= 8 && dom.contains("<table>"), "the page has lines and tables");
    assert!(dom.contains("TTFT by turn") && dom.contains("&lt;script&gt;"));
    // The page's own policy forbids every request, and the browser would say that it kept one back.
    assert!(text.contains("default-src 'none'") && !log.contains("CONSOLE"), "{log}");
}
