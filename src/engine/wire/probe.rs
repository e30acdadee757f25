//! Finds out the release of a master by calls that leave nothing behind.

use crate::layout::MethodLayout;
use crate::method::Method;
use crate::pack::{DecodeError, Text, Wire, if_present};
use crate::types::{GrantLeasePolicy, LeaseMode, ReplicateConfig, SliceLength, Tenant};
use mcctl_base::ClientId;
use mcctl_base::upstream::Releases;

/// Finds out the release of a master: send each [request](ReleaseProbe::request), and report its
/// result, until there are no more.
///
/// The calls look up and put no objects. A master refuses those of other
/// releases, and the type of its response tells releases with equal requests apart.
#[derive(Clone, Debug)]
pub struct ReleaseProbe {
    possible: Releases,
    /// Number of methods in [`CALLS`] that the master has answered.
    answered: usize,
}

/// The methods. Only the newest release has the first one. So mcctl's master, which serves all
/// releases, answers it, and does not take this client for an older one. A slow disk delays puts,
/// which come last.
const CALLS: [Method; 3] = [Method::BatchProbeKey, Method::BatchGetReplicaList, Method::BatchPutStart];

impl Default for ReleaseProbe {
    fn default() -> ReleaseProbe {
        ReleaseProbe { possible: Releases::ALL, answered: 0 }
    }
}

impl ReleaseProbe {
    /// The next request; `None` when no request can exclude more releases.
    ///
    /// # Errors
    /// None, since a release without the method is not asked for it.
    pub fn request(&self) -> Result<Option<(Method, Vec<u8>)>, DecodeError> {
        let Some(release) = self.possible.newest() else { return Ok(None) };
        for method in CALLS.into_iter().skip(self.answered) {
            let alike = method.releases_with_request_of(release).and(method.releases_with_response_of(release));
            // Without an answer, the last release that is left is only a guess.
            let is_known = self.answered > 0 && self.possible.without(alike).is_empty();
            if alike.is_empty() || is_known {
                continue;
            }
            return Ok(Some((method, empty_request(method, method.require_layout(release)?))));
        }
        Ok(None)
    }

    /// The master has answered the request for `method` with `response`.
    pub fn answer(&mut self, method: Method, response: &[u8]) {
        let Some(release) = self.possible.newest() else { return };
        let alike = self.possible.and(method.releases_with_request_of(release));
        let found = alike.and(method.releases_of_response(response));
        self.possible = if found.is_empty() { alike } else { found };
        self.answered = CALLS.iter().position(|call| *call == method).map_or(self.answered, |at| at + 1);
    }

    /// The master has refused the request for `method`, because it is not of its release.
    pub fn refuse(&mut self, method: Method) {
        let Some(release) = self.possible.newest() else { return };
        self.possible = self.possible.without(method.releases_with_request_of(release));
    }

    /// The releases that the master can have. Empty: the master is newer, or not a Mooncake master.
    pub fn possible(&self) -> Releases {
        self.possible
    }
}

/// A request for no keys or objects.
fn empty_request(method: Method, layout: &MethodLayout) -> Vec<u8> {
    let keys: Vec<Text<'_>> = Vec::new();
    let config = ReplicateConfig::default();
    let longest = config.longest().max(Tenant::DEFAULT.longest());
    let mut body = Vec::new();
    layout.encode_request(&mut body, false, longest, |out| match method {
        Method::BatchPutStart => {
            if_present!(out, { ClientId::default().put(out); } since V0_3_8);
            keys.put(out);
            Vec::<SliceLength>::new().put(out);
            config.put(out);
            if_present!(out, { Tenant::DEFAULT.put(out); } since V0_3_12);
        }
        Method::BatchProbeKey => {
            GrantLeasePolicy { lease_mode: LeaseMode::NONE, candidate_size: 0 }.put(out);
            keys.put(out);
            Tenant::DEFAULT.put(out);
        }
        _ => {
            keys.put(out);
            if_present!(out, { Tenant::DEFAULT.put(out); } since V0_3_12);
        }
    });
    body
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClientRelease;
    use crate::method::transcode;
    use mcctl_base::upstream::Release;

    /// What a master of `release` answers: the response, or a refusal.
    fn call(release: Release, method: Method, body: &[u8]) -> Option<Vec<u8>> {
        let layout = method.layout(release)?;
        transcode::request(method, layout, body, false).ok()?;
        Some([&layout.response().hash().to_le_bytes()[..], &[0]].concat())
    }

    #[test]
    fn every_release_is_found_with_few_calls() {
        for release in Release::ALL.iter().copied() {
            let mut probe = ReleaseProbe::default();
            let mut calls = 0;
            while let Some((method, body)) = probe.request().expect("the methods exist") {
                calls += 1;
                match call(release, method, &body) {
                    Some(response) => probe.answer(method, &response),
                    None => probe.refuse(method),
                }
            }
            assert!(probe.possible().contains(release) && calls <= 8, "{release}: {probe:?} after {calls} calls");
            // 0.3.9 and 0.3.10 differ only in a field of tasks.
            let others: Vec<Release> = probe.possible().iter().filter(|other| *other != release).collect();
            let tasks = |release: Release| [Release::V0_3_9, Release::V0_3_10].contains(&release);
            assert!(others.is_empty() || tasks(release) && others.into_iter().all(tasks), "{release}: {probe:?}");
        }
    }

    #[test]
    fn a_master_of_all_releases_takes_the_client_for_the_newest_one() {
        for assumed in Release::ALL.iter().copied() {
            let mut client = ClientRelease::new(assumed);
            let mut probe = ReleaseProbe::default();
            while let Some((method, body)) = probe.request().expect("the methods exist") {
                let layout = client.layout(method, &body, 0, |_| assumed).expect("a known layout");
                let response = [&layout.response().hash().to_le_bytes()[..], &[0]].concat();
                probe.answer(method, &response);
            }
            assert_eq!(probe.possible(), Releases::only(Release::LATEST), "{assumed}");
        }
    }

    #[test]
    fn a_master_that_refuses_everything_has_no_known_release() {
        let mut probe = ReleaseProbe::default();
        while let Some((method, _)) = probe.request().expect("the methods exist") {
            probe.refuse(method);
        }
        assert!(probe.possible().is_empty());
    }
}
