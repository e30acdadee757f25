//! The client of one connection: its address, and what it has shown about its release.

use crate::rpc::releases::ClientReleases;
use mcctl_base::Mono;
use mcctl_wire::{ClientRelease, DecodeError, Method, MethodLayout, Release};

/// The client of a connection.
pub(super) struct ConnectionClient {
    pub peer: String,
    /// The next request has waited for its admission.
    pub is_admitted: bool,
    release: ClientRelease,
    releases: ClientReleases,
}

impl ConnectionClient {
    pub(super) fn new(peer: String, releases: ClientReleases) -> ConnectionClient {
        ConnectionClient { peer, is_admitted: false, release: ClientRelease::new(releases.assumed()), releases }
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
        let layout = self
            .release
            .layout(method, body, milliseconds(now), |assumption| self.releases.assume(&self.peer, assumption, now))?;
        if self.release.possible() != before {
            self.releases.show(&self.peer, self.release.possible(), now);
        }
        Ok(layout)
    }

    /// Notes that bytes were received from the client.
    #[inline]
    pub(super) fn read(&mut self, now: Mono) {
        if self.release.confirm(milliseconds(now)) {
            self.releases.show(&self.peer, self.release.possible(), now);
        }
    }

    /// The client has closed the connection.
    pub(super) fn end(&self, now: Mono) {
        if let Some(refused) = self.release.refused(milliseconds(now)) {
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
