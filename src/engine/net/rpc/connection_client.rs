//! The client of one connection: its address, and what it has shown about its release.

use crate::rpc::releases::ClientReleases;
use mcctl_base::Mono;
use mcctl_wire::{ClientRelease, DecodeError, Method, MethodLayout, Release, is_release_probe};

/// The client of a connection.
pub(super) struct ConnectionClient {
    pub peer: String,
    release: ClientRelease,
    releases: ClientReleases,
    /// Whether the client is one of mcctl, which asks for the master's release first. It says
    /// nothing about the other clients of its host.
    is_mcctl: bool,
}

impl ConnectionClient {
    pub(super) fn new(peer: String, releases: ClientReleases) -> ConnectionClient {
        ConnectionClient { peer, release: ClientRelease::new(releases.assumed()), releases, is_mcctl: false }
    }

    /// Returns the layout of a request.
    ///
    /// # Errors
    /// No release sends such a request.
    #[inline]
    pub(super) fn layout(
        &mut self,
        method: Method,
        body: &[u8],
        now: Mono,
    ) -> Result<&'static MethodLayout, DecodeError> {
        let before = self.release.possible();
        self.is_mcctl |= is_release_probe(method, body);
        let layout = self
            .release
            .layout(method, body, milliseconds(now), |assumption| self.releases.assume(&self.peer, assumption, now))?;
        if self.release.possible() != before {
            self.show(now);
        }
        Ok(layout)
    }

    /// Notes that bytes were received from the client.
    #[inline]
    pub(super) fn read(&mut self, now: Mono) {
        if self.release.confirm(milliseconds(now)) {
            self.show(now);
        }
    }

    /// Notes for the client's host what the connection has shown.
    fn show(&self, now: Mono) {
        if !self.is_mcctl {
            self.releases.show(&self.peer, self.release.possible(), now);
        }
    }

    /// The client has closed the connection.
    pub(super) fn end(&self, now: Mono) {
        if let Some(refused) = self.release.refused(milliseconds(now)).filter(|_| !self.is_mcctl) {
            self.releases.refuse(&self.peer, refused, now);
            let method = refused.method.name();
            tracing::debug!(peer = self.peer, method, refused = %refused.releases, "connection closed after a response for these releases");
        }
    }

    /// Counts a request that cannot be decoded, and logs the first one of a host to each method,
    /// because a client from an unknown release causes the same error on every call.
    pub(super) fn report(&self, method: Method, error: &DecodeError, now: Mono) {
        let possible = self.release.possible();
        if self.releases.count_unknown(&self.peer, method, error, possible, now) {
            tracing::warn!(
                peer = self.peer,
                method = method.name(),
                %error,
                release = %possible,
                newest = Release::LATEST.name(),
                "cannot decode a request; its client may be newer than this master. `mcctl status` lists such clients"
            );
        }
    }
}

fn milliseconds(now: Mono) -> u64 {
    u64::try_from(now.since(Mono::ZERO).as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcctl_wire::{ReleaseProbe, Releases};

    const PEER: &str = "10.0.0.1:4000";

    fn type_hash(method: Method, release: Release) -> Vec<u8> {
        let info = method.layout(release).and_then(MethodLayout::request).expect("a request");
        info.hash().to_le_bytes().to_vec()
    }

    #[test]
    fn a_client_of_mcctl_proves_nothing_about_other_clients_of_its_host() {
        let releases = ClientReleases::new(Release::LATEST);
        let mut ours = ConnectionClient::new(PEER.to_owned(), releases.clone());
        let (method, body) = ReleaseProbe::default().request().expect("a request").expect("a first one");
        ours.layout(method, &body, Mono::ZERO).expect("a known layout");
        ours.layout(Method::PutStart, &type_hash(Method::PutStart, Release::LATEST), Mono::ZERO).expect("a put");
        ours.end(Mono::ZERO);
        assert_eq!(releases.shown(Mono::ZERO), []);

        let mut wheel = ConnectionClient::new(PEER.to_owned(), releases.clone());
        let put = type_hash(Method::PutStart, Release::V0_3_12);
        wheel.layout(Method::PutStart, &put, Mono::ZERO).expect("a known layout");
        let shown = releases.shown(Mono::ZERO);
        let [(_, shown)] = &shown[..] else { panic!("{shown:?}") };
        assert!(shown.iter().all(|set| *set != Releases::ALL && set.contains(Release::V0_3_12)));
    }
}
