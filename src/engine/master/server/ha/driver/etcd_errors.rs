//! The errors of etcd: those of requests, and of reading the records, which may be invalid although
//! etcd responds.

use mcctl_election::ElectionError;

/// The last errors, until a request of the same kind succeeds.
#[derive(Debug, Default)]
pub(in crate::server::ha) struct EtcdErrors {
    request: Option<ElectionError>,
    observation: Option<ElectionError>,
}

/// A change that an operator must notice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::server::ha) enum EtcdEvent {
    NoResponse(ElectionError),
    RespondsAgain,
    InvalidRecord { key: String, why: String },
    ValidAgain,
}

impl EtcdErrors {
    /// Keeps the result of a request that reads no record.
    pub(super) fn requested(&mut self, error: Option<&ElectionError>) -> Option<EtcdEvent> {
        self.change(|errors| errors.request = error.cloned())
    }

    /// Keeps the result of reading the records.
    pub(super) fn observed(&mut self, error: Option<&ElectionError>) -> Option<EtcdEvent> {
        self.change(|errors| errors.observation = error.cloned())
    }

    /// The last error. An invalid record comes first, because only an operator can correct it.
    pub(super) fn last(&self) -> Option<&ElectionError> {
        self.invalid().or(self.no_response())
    }

    fn invalid(&self) -> Option<&ElectionError> {
        self.observation.as_ref().filter(|error| matches!(error, ElectionError::Invalid { .. }))
    }

    fn no_response(&self) -> Option<&ElectionError> {
        let errors = [&self.request, &self.observation].into_iter().flatten();
        errors.into_iter().find(|error| matches!(error, ElectionError::Unavailable(_)))
    }

    fn change(&mut self, set: impl FnOnce(&mut EtcdErrors)) -> Option<EtcdEvent> {
        let invalid = self.invalid().cloned();
        let had_response = self.no_response().is_none();
        set(self);
        match (self.invalid(), self.no_response()) {
            (Some(ElectionError::Invalid { key, why }), _) if self.invalid() != invalid.as_ref() => {
                Some(EtcdEvent::InvalidRecord { key: key.clone(), why: why.clone() })
            }
            (_, Some(error)) if had_response => Some(EtcdEvent::NoResponse(error.clone())),
            (_, None) if !had_response => Some(EtcdEvent::RespondsAgain),
            (None, None) if invalid.is_some() => Some(EtcdEvent::ValidAgain),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_record_is_reported_once_while_etcd_responds() {
        let key = "k".to_owned();
        let why = "w".to_owned();
        let invalid = ElectionError::Invalid { key: key.clone(), why: why.clone() };
        let mut errors = EtcdErrors::default();
        assert_eq!(errors.observed(Some(&invalid)), Some(EtcdEvent::InvalidRecord { key, why }));
        for _ in 0..3 {
            assert_eq!(errors.requested(None), None);
            assert_eq!(errors.observed(Some(&invalid)), None);
            assert_eq!(errors.last(), Some(&invalid));
        }
        assert_eq!(errors.observed(None), Some(EtcdEvent::ValidAgain));
        assert_eq!(errors.last(), None);
    }

    #[test]
    fn a_silent_etcd_is_reported_once_until_all_requests_succeed() {
        let silent = ElectionError::Unavailable("timeout".to_owned());
        let mut errors = EtcdErrors::default();
        assert_eq!(errors.requested(Some(&silent)), Some(EtcdEvent::NoResponse(silent.clone())));
        assert_eq!(errors.observed(Some(&silent)), None);
        assert_eq!(errors.requested(None), None);
        assert_eq!(errors.last(), Some(&silent));
        assert_eq!(errors.observed(None), Some(EtcdEvent::RespondsAgain));
        assert_eq!(errors.last(), None);
    }
}
