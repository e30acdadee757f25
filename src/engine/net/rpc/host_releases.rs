//! The releases of the clients of one host: the rules by which a server assumes one of them.

use std::time::Duration;

use mcctl_base::Mono;
use mcctl_wire::{Assumption, Method, RefusedResponse, Release, Releases};

/// Number of different sets of releases remembered per host. A client shows several, each smaller
/// than the one before.
const SHOWN_MAX: usize = 64;
/// A client that could not decode a response calls again within this time.
const REFUSAL_MAX: Duration = Duration::from_secs(5);
/// The same for a client that could not decode the handshake: a supervisor restarts it.
const RESTART_MAX: Duration = Duration::from_secs(60);
/// What a host has shown is listed for this long.
const SHOWN_KEPT: Duration = Duration::from_secs(24 * 3600);

/// What the clients of a host have shown and refused.
#[derive(Debug, Default)]
pub(super) struct HostReleases {
    /// What clients of this host have shown, the latest last.
    shown: Vec<(Releases, Mono)>,
    /// The releases whose responses clients have refused, and the time of the last refusal.
    refused: Option<(Releases, Mono)>,
    /// Number of these refusals.
    refusals: u32,
    /// The same for the response to the handshake, until the next handshake.
    refused_handshake: Option<(Releases, Mono)>,
}

impl HostReleases {
    /// The time of the last change.
    pub(super) fn changed_at(&self) -> Mono {
        let shown = self.shown.last().map(|(_, at)| *at);
        let refused = [self.refused, self.refused_handshake].into_iter().flatten().map(|(_, at)| at).max();
        shown.max(refused).unwrap_or(Mono::ZERO)
    }

    /// What a client has shown last.
    pub(super) fn last(&self) -> Option<Releases> {
        self.shown.last().map(|(shown, _)| *shown)
    }

    /// What clients have shown in the last day, the latest last. A client shows more with each kind
    /// of call, so a set that contains another one is left out.
    pub(super) fn shown(&self, now: Mono) -> Vec<Releases> {
        let kept = || self.shown.iter().filter(|(_, at)| now.since(*at) <= SHOWN_KEPT).map(|(releases, _)| *releases);
        let is_known_better =
            |releases: &Releases| kept().any(|other| other != *releases && other.without(*releases).is_empty());
        kept().filter(|releases| !is_known_better(releases)).collect()
    }

    /// Adds what a client has shown.
    pub(super) fn show(&mut self, possible: Releases, now: Mono) {
        // These releases have clients here.
        self.refused = self.refused.map(|(refused, at)| (refused.without(possible), at));
        self.shown.retain(|(shown, _)| *shown != possible);
        if self.shown.len() == SHOWN_MAX {
            self.shown.remove(0);
        }
        self.shown.push((possible, now));
    }

    /// Adds a response that a client could not decode.
    pub(super) fn refuse(&mut self, response: RefusedResponse, now: Mono) {
        let RefusedResponse { method, releases, is_fresh } = response;
        if method == Method::ServiceReady {
            self.refused_handshake = Some((releases, now));
            return;
        }
        // A client of this release that has read one object and ended.
        if is_fresh && self.is_proven(releases) {
            return;
        }
        let before = self.refused.filter(|(_, at)| now.since(*at) <= REFUSAL_MAX);
        let before = before.map_or(Releases::NONE, |(before, _)| before);
        self.refusals = if before.is_empty() { 1 } else { self.refusals + 1 };
        self.refused = Some((before.or(releases), now));
    }

    /// Whether a client on the host has one of these releases.
    fn is_proven(&self, releases: Releases) -> bool {
        self.shown.iter().any(|(shown, _)| shown.without(releases).is_empty())
    }

    /// The release of a client, if the host has shown or refused something about it.
    pub(super) fn assume(&mut self, assumption: Assumption, now: Mono) -> Option<Release> {
        let Assumption { method, possible, is_fresh } = assumption;
        if method == Method::ServiceReady {
            // A wrong answer ends the client, and after an upgrade, its host has shown only the
            // release before. So only a client that has just ended counts.
            let (refused, at) = self.refused_handshake.take()?;
            return (now.since(at) <= RESTART_MAX).then(|| possible.without(refused).newest())?;
        }
        // A client that has just started did not refuse the last response. One refusal proves less
        // than what the host has shown, if that is one release.
        if let Some((refused, at)) = self.refused
            && !is_fresh
            && now.since(at) <= REFUSAL_MAX
            && !possible.and(refused).is_empty()
            && (self.refusals > 1 || !self.is_proven(refused) || self.has_several(possible))
        {
            match possible.without(refused).newest() {
                Some(other) => return Some(other),
                // Start again: the refusals are those of several clients.
                None => self.refused = None,
            }
        }
        if is_fresh && self.has_several(possible) {
            return None;
        }
        let narrowed = self.narrow(possible);
        if narrowed == possible { None } else { narrowed.newest() }
    }

    /// The releases in `possible` that the latest records leave. A record that contradicts a later
    /// one does not count.
    fn narrow(&self, possible: Releases) -> Releases {
        self.shown.iter().rev().fold(possible, |narrowed, (shown, _)| {
            let both = narrowed.and(*shown);
            if both.is_empty() { narrowed } else { both }
        })
    }

    /// Whether clients of different releases in `possible` are on the host. So the release of a
    /// client that has just started is open.
    fn has_several(&self, possible: Releases) -> bool {
        let matching = || self.shown.iter().map(|(shown, _)| shown.and(possible)).filter(|both| !both.is_empty());
        matching().any(|one| matching().any(|other| one.and(other).is_empty()))
    }
}
