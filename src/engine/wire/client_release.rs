//! The release of a client, as far as its connection shows it.

use crate::layout::MethodLayout;
use crate::method::Method;
use crate::pack::{DecodeError, DecodeFault, TypeInfo, type_hash};
use mcctl_base::upstream::{Release, Releases};

/// What one connection has shown about the release of its client.
///
/// Most requests have the same layout in several releases, and some of these have different
/// responses. Until a request decides, the release is an assumption. A client that cannot decode a
/// response closes the connection at once, so a request `CONFIRMED_AFTER_MS` later confirms the
/// assumption. An earlier one may have been sent before the response arrived.
#[derive(Clone, Copy, Debug)]
pub struct ClientRelease {
    /// The releases that are possible after all requests so far.
    possible: Releases,
    /// The release whose layouts are used.
    used: Release,
    /// A response that not all possible releases can decode.
    unconfirmed: Option<UnconfirmedResponse>,
    /// Whether the connection began with the handshake, so that its client has just started.
    is_fresh: bool,
}

/// Time in ms from a response that is not confirmed to a request that confirms it.
const CONFIRMED_AFTER_MS: u64 = 100;
/// A client that cannot decode a response closes the connection within this time, in ms.
const REFUSED_WITHIN_MS: u64 = 1000;

/// A response that only some of the possible releases can decode.
#[derive(Clone, Copy, Debug)]
struct UnconfirmedResponse {
    method: Method,
    /// The releases that can decode it.
    decodable: Releases,
    /// Times of the first and the last such response, in ms.
    since_ms: u64,
    last_ms: u64,
}

/// A response that a client could not decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedResponse {
    pub method: Method,
    /// The releases that can decode it.
    pub releases: Releases,
    /// Whether the client had just started. It may also have ended on its own.
    pub is_fresh: bool,
}

/// What the caller of [`ClientRelease::layout`] assumes a release from.
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

    /// The layout of a request that was received at `now_ms`. If several releases are possible that
    /// answer it differently, `assume` selects one of them.
    ///
    /// # Errors
    /// No release sends such a request.
    pub fn layout(
        &mut self,
        method: Method,
        body: &[u8],
        now_ms: u64,
        assume: impl FnOnce(Assumption) -> Release,
    ) -> Result<&'static MethodLayout, DecodeError> {
        let senders = method.releases_of_request(body);
        if senders.is_empty() {
            let expected = method.layout(Release::LATEST).and_then(MethodLayout::request).map_or(0, TypeInfo::hash);
            return Err(DecodeFault::Hash { found: type_hash(body).unwrap_or(0), expected }.into());
        }
        // An old request without a body may remove all objects. A client that has shown a newer
        // release has not sent it.
        if body.is_empty() && self.possible.and(senders).is_empty() {
            return Err(DecodeFault::Hash { found: 0, expected: 0 }.into());
        }
        self.is_fresh |= method == Method::ServiceReady && self.possible == Releases::ALL;
        let narrowed = self.possible.and(senders);
        // A connection on which another client continues, for example behind a proxy, starts again
        // with what this request shows.
        let possible = if narrowed.is_empty() { senders } else { narrowed };
        let alike = method.releases_with_response_of(self.used);
        if possible.contains(self.used) && possible.without(alike).is_empty() {
            self.possible = possible;
            return method.require_layout(self.used);
        }
        // An earlier assumption decides only between the responses that it concerned.
        let is_decided = self.unconfirmed.is_some_and(|before| {
            let decodable = before.decodable.and(possible);
            !decodable.is_empty() && decodable.without(alike).is_empty()
        });
        if possible != self.possible || !possible.contains(self.used) || !is_decided {
            self.possible = possible;
            let assumption = Assumption { method, possible, is_fresh: self.is_fresh };
            self.used = possible.single().unwrap_or_else(|| assume(assumption));
        }
        let alike = method.releases_with_response_of(self.used);
        if !possible.without(alike).is_empty() {
            let since_ms = self.unconfirmed.filter(|before| before.decodable == alike).map(|before| before.since_ms);
            self.unconfirmed = Some(UnconfirmedResponse {
                method,
                decodable: alike,
                since_ms: since_ms.unwrap_or(now_ms),
                last_ms: now_ms,
            });
        }
        method.require_layout(self.used)
    }

    /// Notes that the client has sent another request at `now_ms`. Returns true if that excludes a
    /// release.
    #[inline]
    pub fn confirm(&mut self, now_ms: u64) -> bool {
        let Some(response) = self.unconfirmed else { return false };
        if now_ms.saturating_sub(response.since_ms) < CONFIRMED_AFTER_MS {
            return false;
        }
        self.unconfirmed = None;
        let confirmed = self.possible.and(response.decodable);
        let is_news = confirmed != self.possible && !confirmed.is_empty();
        if is_news {
            self.possible = confirmed;
        }
        is_news
    }

    /// If the client closes the connection at `now_ms`: the response that it seems to have refused.
    pub fn refused(&self, now_ms: u64) -> Option<RefusedResponse> {
        let response = self.unconfirmed?;
        let is_at_once = now_ms.saturating_sub(response.last_ms) <= REFUSED_WITHIN_MS;
        let UnconfirmedResponse { method, decodable: releases, .. } = response;
        is_at_once.then_some(RefusedResponse { method, releases, is_fresh: self.is_fresh })
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
        let mut now_ms = 0;
        let layout = |method: &Method| {
            client.confirm(now_ms);
            now_ms += CONFIRMED_AFTER_MS;
            client
                .layout(*method, &request(*method, release), now_ms, assume(Release::LATEST))
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
                client.layout(method, &request(method, release), 0, |_| release).expect("a known layout");
            }
            client.confirm(CONFIRMED_AFTER_MS);
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
        let layout = client.layout(Method::GetReplicaList, &body, 0, assume(Release::LATEST)).expect("a known layout");
        assert_eq!(layout.release(), Release::LATEST);
        assert!(client.refused(REFUSED_WITHIN_MS).is_some_and(
            |refused| refused.releases.contains(Release::LATEST) && !refused.releases.contains(Release::V0_3_12)
        ));
        assert_eq!(client.refused(REFUSED_WITHIN_MS + 1), None, "an idle connection");
        assert!(!client.confirm(CONFIRMED_AFTER_MS - 1), "the request may have been sent before");
        assert!(client.refused(REFUSED_WITHIN_MS).is_some());
        assert!(client.confirm(CONFIRMED_AFTER_MS));
        assert_eq!(client.refused(CONFIRMED_AFTER_MS), None);
        assert!(!client.possible().contains(Release::V0_3_12));
    }

    #[test]
    fn the_assumption_for_the_handshake_does_not_decide_a_read() {
        let release = Release::V0_3_9;
        let mut client = ClientRelease::new(Release::LATEST);
        for method in [Method::ServiceReady, Method::ReMountSegment] {
            client.layout(method, &request(method, release), 0, assume(Release::LATEST)).expect("a known layout");
        }
        // Another connection of the host has shown the release in the meantime.
        let body = request(Method::GetReplicaList, release);
        let layout = client.layout(Method::GetReplicaList, &body, 1, assume(release)).expect("a known layout");
        assert_eq!(layout.release(), release);
        // Until the response is confirmed, the next one is the same.
        let layout = client.layout(Method::GetReplicaList, &body, 2, assume(Release::LATEST)).expect("a known layout");
        assert_eq!(layout.release(), release);
    }

    #[test]
    fn another_client_on_the_same_connection_is_known_by_its_requests() {
        let mut client = ClientRelease::new(Release::LATEST);
        for release in [Release::V0_3_13, Release::V0_3_9, Release::V0_3_6] {
            let body = request(Method::PutStart, release);
            client.layout(Method::PutStart, &body, 0, assume(release)).expect("a known layout");
            assert!(client.possible().contains(release) && client.possible().contains(client.used()));
        }
    }

    #[test]
    fn a_request_of_no_release_is_an_error_with_its_type() {
        let mut client = ClientRelease::new(Release::LATEST);
        for body in [&[1, 2, 3, 4, 5][..], &[]] {
            let error =
                client.layout(Method::PutStart, body, 0, assume(Release::LATEST)).expect_err("an unknown layout");
            assert!(matches!(error.fault, DecodeFault::Hash { .. }));
        }
        // An old request without a body removes all objects. Of one with an unknown body, this is
        // not known.
        assert!(client.layout(Method::RemoveAll, &[], 0, assume(Release::V0_3_8)).is_ok());
        assert!(client.layout(Method::RemoveAll, &[1, 2, 3, 4], 0, assume(Release::V0_3_8)).is_err());
    }
}
