//! The release of a client, as far as its connection shows it.

use crate::layout::MethodLayout;
use crate::method::Method;
use crate::pack::{DecodeError, DecodeFault, TypeInfo, type_hash};
use mcctl_base::upstream::{Release, Releases};

/// What one connection has shown about the release of its client.
///
/// Most requests have the same layout in several releases, and some of these have different
/// responses. Until a request decides, the release is an assumption. A client that cannot decode a
/// response closes the connection, so the next request confirms the assumption.
#[derive(Clone, Copy, Debug)]
pub struct ClientRelease {
    /// The releases that are possible after all requests so far.
    possible: Releases,
    /// The release whose layouts are used.
    used: Release,
    /// The method of the last response, and the releases that can decode it; `None` if all possible
    /// ones can.
    unconfirmed: Option<(Method, Releases)>,
    /// Whether the connection began with the handshake, so that its client has just started.
    is_fresh: bool,
}

/// A question to [`ClientRelease::layout`]'s caller: which release to assume.
#[derive(Clone, Copy, Debug)]
pub struct Assumption {
    pub method: Method,
    /// The releases that send such requests.
    pub possible: Releases,
    /// Whether the client has just started.
    pub is_fresh: bool,
}

impl ClientRelease {
    /// A client that has sent nothing yet. `assumed` is used where the release makes no difference.
    pub fn new(assumed: Release) -> ClientRelease {
        ClientRelease { possible: Releases::ALL, used: assumed, unconfirmed: None, is_fresh: false }
    }

    /// The releases that the client can have.
    pub fn possible(&self) -> Releases {
        self.possible
    }

    /// The release whose layouts are used for this client.
    pub fn used(&self) -> Release {
        self.used
    }

    /// The layout of a request. If several releases are possible that answer it differently,
    /// `assume` selects one of them.
    ///
    /// # Errors
    /// No release sends such a request.
    pub fn layout(
        &mut self,
        method: Method,
        body: &[u8],
        assume: impl FnOnce(Assumption) -> Release,
    ) -> Result<&'static MethodLayout, DecodeError> {
        let senders = method.releases_of_request(body);
        if senders.is_empty() {
            let expected = method.layout(Release::LATEST).and_then(MethodLayout::request).map_or(0, TypeInfo::hash);
            return Err(DecodeFault::Hash { found: type_hash(body).unwrap_or(0), expected }.into());
        }
        self.is_fresh |= method == Method::ServiceReady && self.possible == Releases::ALL;
        let narrowed = self.possible.and(senders);
        // A connection on which another client continues, for example behind a proxy, starts again
        // with what this request shows.
        let possible = if narrowed.is_empty() { senders } else { narrowed };
        let alike = method.releases_with_response_of(self.used);
        if possible.contains(self.used) && possible.without(alike).is_empty() {
            self.possible = possible;
            return method.layout_in(self.used);
        }
        if possible != self.possible || !possible.contains(self.used) || self.unconfirmed.is_none() {
            self.possible = possible;
            let assumption = Assumption { method, possible, is_fresh: self.is_fresh };
            self.used = possible.single().unwrap_or_else(|| assume(assumption));
        }
        let alike = method.releases_with_response_of(self.used);
        if !possible.without(alike).is_empty() {
            self.unconfirmed = Some((method, alike));
        }
        method.layout_in(self.used)
    }

    /// Notes that the client has sent another request, so it has decoded the last response.
    /// Returns true if that excludes a release.
    #[inline]
    pub fn confirm(&mut self) -> bool {
        let Some((_, decodable)) = self.unconfirmed.take() else { return false };
        let confirmed = self.possible.and(decodable);
        let is_news = confirmed != self.possible && !confirmed.is_empty();
        if is_news {
            self.possible = confirmed;
        }
        is_news
    }

    /// At the end of the connection: the method of the last response, and the releases for which it
    /// was meant, if it seems that the client could not decode it.
    pub fn refused(&self) -> Option<(Method, Releases)> {
        self.unconfirmed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: Method, release: Release) -> Vec<u8> {
        let info = method.layout(release).and_then(MethodLayout::request);
        info.map_or(Vec::new(), |info| info.hash().to_le_bytes().to_vec())
    }

    fn assume(release: Release) -> impl Fn(Assumption) -> Release {
        move |assumption| {
            if assumption.possible.contains(release) {
                release
            } else {
                assumption.possible.newest().unwrap_or(release)
            }
        }
    }

    /// The release whose layout answers each of `calls` of a client of `release`.
    fn used(release: Release, calls: &[Method]) -> Vec<Release> {
        let mut client = ClientRelease::new(Release::LATEST);
        let layout = |method: &Method| {
            client.confirm();
            client
                .layout(*method, &request(*method, release), assume(Release::LATEST))
                .expect("a known layout")
                .release()
        };
        calls.iter().map(layout).collect()
    }

    #[test]
    fn every_release_is_known_after_a_put_and_a_response_that_it_decodes() {
        for release in Release::ALL.iter().copied() {
            let mut client = ClientRelease::new(Release::LATEST);
            for method in [Method::MountSegment, Method::PutStart, Method::GetReplicaList] {
                client.layout(method, &request(method, release), |_| release).expect("a known layout");
            }
            client.confirm();
            let same = |other: &Release| {
                [Method::MountSegment, Method::PutStart, Method::GetReplicaList].iter().all(|method| {
                    let hashes = |release| {
                        let layout = method.layout(release)?;
                        Some((layout.request().map(TypeInfo::hash), layout.response().hash()))
                    };
                    hashes(*other) == hashes(release)
                })
            };
            let expected: Releases = Release::ALL.iter().copied().filter(same).collect();
            assert_eq!(client.possible(), expected, "{release}");
        }
    }

    #[test]
    fn a_put_corrects_the_assumption_for_later_reads() {
        let calls = [Method::ServiceReady, Method::GetStorageConfig, Method::PutStart, Method::GetReplicaList];
        let release = Release::V0_3_12;
        assert_eq!(used(release, &calls)[2..], [release, release]);
    }

    #[test]
    fn a_response_that_was_not_decoded_is_refused() {
        let mut client = ClientRelease::new(Release::LATEST);
        let body = request(Method::GetReplicaList, Release::V0_3_12);
        let layout = client.layout(Method::GetReplicaList, &body, assume(Release::LATEST)).expect("a known layout");
        assert_eq!(layout.release(), Release::LATEST);
        assert!(
            client
                .refused()
                .is_some_and(|(_, refused)| refused.contains(Release::LATEST) && !refused.contains(Release::V0_3_12))
        );
        assert!(client.confirm());
        assert_eq!(client.refused(), None);
        assert!(!client.possible().contains(Release::V0_3_12));
    }

    #[test]
    fn another_client_on_the_same_connection_is_known_by_its_requests() {
        let mut client = ClientRelease::new(Release::LATEST);
        for release in [Release::V0_3_13, Release::V0_3_9, Release::V0_3_6] {
            let body = request(Method::PutStart, release);
            client.layout(Method::PutStart, &body, assume(release)).expect("a known layout");
            assert!(client.possible().contains(release) && client.possible().contains(client.used()));
        }
    }

    #[test]
    fn a_request_of_no_release_is_an_error_with_its_type() {
        let mut client = ClientRelease::new(Release::LATEST);
        for body in [&[1, 2, 3, 4, 5][..], &[]] {
            let error = client.layout(Method::PutStart, body, assume(Release::LATEST)).expect_err("an unknown layout");
            assert!(matches!(error.fault, DecodeFault::Hash { .. }));
        }
        // An old request without a body removes all objects. Of one with an unknown body, this is
        // not known.
        assert!(client.layout(Method::RemoveAll, &[], assume(Release::V0_3_8)).is_ok());
        assert!(client.layout(Method::RemoveAll, &[1, 2, 3, 4], assume(Release::V0_3_8)).is_err());
    }
}
