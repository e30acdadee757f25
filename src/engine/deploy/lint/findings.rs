//! The findings of a rule.

use mcctl_base::check::{Finding, Severity, SourceLocation};
use mcctl_base::text::masked;

/// Collects the findings of one rule.
pub(super) struct Findings {
    id: &'static str,
    out: Vec<Finding>,
}

impl Findings {
    /// An empty list for the rule `id`.
    pub(super) fn new(id: &'static str) -> Findings {
        Findings { id, out: Vec::new() }
    }

    /// Returns the findings reported so far.
    pub(super) fn into_vec(self) -> Vec<Finding> {
        self.out
    }

    fn add(&mut self, severity: Severity, place: &SourceLocation, texts: [String; 3]) {
        // Addresses may contain passwords, and findings end up in reports and CI logs.
        let [finding, evidence, remedy] = texts.map(|text| masked(&text).into_owned());
        self.out.push(Finding { id: self.id, severity, finding, evidence, remedy, place: Some(place.clone()) });
    }

    /// Reports a failure or a loss of data.
    pub(super) fn error(
        &mut self,
        at: &SourceLocation,
        what: impl Into<String>,
        evidence: impl Into<String>,
        next: impl Into<String>,
    ) {
        self.add(Severity::Error, at, [what.into(), evidence.into(), next.into()]);
    }

    /// Reports something that works only partially, only on some hosts, or only temporarily.
    pub(super) fn warning(
        &mut self,
        at: &SourceLocation,
        what: impl Into<String>,
        evidence: impl Into<String>,
        next: impl Into<String>,
    ) {
        self.add(Severity::Warning, at, [what.into(), evidence.into(), next.into()]);
    }

    /// Reports a fact worth knowing.
    pub(super) fn info(
        &mut self,
        at: &SourceLocation,
        what: impl Into<String>,
        evidence: impl Into<String>,
        next: impl Into<String>,
    ) {
        self.add(Severity::Info, at, [what.into(), evidence.into(), next.into()]);
    }
}
