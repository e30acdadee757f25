//! Target: traces of requests.

use mcctl::engine::trace::{self, TraceOptions, reuse};

use super::fixtures;

/// Target: a trace of any format. A trace that is accepted has a curve, which only rises.
pub fn read(data: &[u8]) {
    for skip_bad in [false, true] {
        let options = TraceOptions { skip_bad, keys_max: 1 << 10, ..TraceOptions::default() };
        let Ok(trace) = trace::read(data, &options, |_| ()) else { continue };
        let curves = reuse::distances(&trace, None, |_| ()).tier_curves();
        let hits: Vec<u64> = curves.all.points().iter().map(|(_, hits)| *hits).collect();
        assert!(hits.is_sorted(), "{hits:?}");
        assert!(curves.all.ceiling() <= curves.all.asked, "more hits than tokens");
    }
}

/// The traces in `fixtures/load`.
pub fn seeds() -> Vec<Vec<u8>> {
    let files = |folder| std::fs::read_dir(fixtures().join(folder)).expect("the folder exists");
    let files = files("load/traces").chain(files("load/datasets"));
    files.map(|file| std::fs::read(file.expect("it can be listed").path()).expect("it can be read")).collect()
}
