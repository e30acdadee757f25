//! The offers of candidates. Before a complete copy stands for election, it compares itself with
//! the other copies in the sync record, so that the copy with the most changes is elected.
//!
//! All of them have everything that was acknowledged. But one may have received changes that
//! another one has not, and which were not acknowledged. If the other one leads, the first copy
//! contains changes that did not happen, and must be replaced by a snapshot. If the first one
//! leads, the other copy continues with the changes that it lacks.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ha::action::HaAction;
use crate::ha::member::MemberId;
use crate::ha::state::{HaCore, REQUEST_TIMEOUT, RoleState};
use mcctl_base::Mono;

/// Maximum time for which a candidate waits for the offers of the others.
const OFFERS_MAX: Duration = Duration::from_millis(100);
/// Maximum time for which a candidate waits for the election of one with more changes.
const YIELD_MAX: Duration = Duration::from_millis(500);
/// Time between two reads of the offers.
const OFFER_PAUSE: Duration = Duration::from_millis(5);

/// Stores this candidate's offer, and reads those of others, in one transaction. The first one of
/// an election stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferTxn {
    pub candidate: MemberId,
    /// The candidate's lease, with which the offer ends.
    pub lease: i64,
    /// `None`: it is stored.
    pub offer: Option<CandidateOffer>,
    /// The candidates whose offers are read.
    pub others: Vec<MemberId>,
}

/// What a candidate has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CandidateOffer {
    /// The last change of its copy.
    pub applied: u64,
    /// Mod revision of the sync record with which it stands for election.
    pub sync_revision: u64,
}

/// The offers for an election, as a candidate knows them.
#[derive(Debug)]
pub(super) struct KnownOffers {
    sync_revision: u64,
    since: Mono,
    requested: Option<Mono>,
    next: Mono,
    is_stored: bool,
    /// The last change of each other candidate.
    applied: BTreeMap<MemberId, u64>,
}

impl KnownOffers {
    fn new(now: Mono, sync_revision: u64) -> KnownOffers {
        KnownOffers {
            sync_revision,
            since: now,
            requested: None,
            next: now,
            is_stored: false,
            applied: BTreeMap::new(),
        }
    }

    /// How long a candidate with this last change waits, from the beginning.
    fn wait(&self, applied: u64, others: &[MemberId]) -> Duration {
        if self.applied.values().any(|other| *other > applied) {
            YIELD_MAX
        } else if others.iter().any(|id| !self.applied.contains_key(id)) {
            OFFERS_MAX
        } else {
            Duration::ZERO
        }
    }

    /// The times at which the candidate acts.
    pub(super) fn timeouts(&self) -> [Mono; 3] {
        let request = self.requested.map_or(self.next, |sent| sent + REQUEST_TIMEOUT);
        [request, self.since + OFFERS_MAX, self.since + YIELD_MAX]
    }
}

impl HaCore {
    /// Whether this complete copy stands for election now. Otherwise, it requests the offers of the
    /// others.
    pub(super) fn is_first_choice(&mut self, now: Mono) -> bool {
        let Some((sync, revision)) = self.seen.as_ref().and_then(|seen| seen.sync.as_ref()) else { return true };
        let me = self.me.id;
        let others: Vec<MemberId> = sync.in_sync.iter().copied().filter(|id| *id != me).collect();
        let revision = *revision;
        let has_handed_over = sync.handed_over;
        let RoleState::Standby(follower) = &mut self.role else { return true };
        let Some(lease) = self.lease.id else { return true };
        if others.is_empty() || has_handed_over || follower.take_over.is_some() {
            return true;
        }
        let applied = follower.applied;
        let offers = follower.offers.get_or_insert_with(|| KnownOffers::new(now, revision));
        if offers.sync_revision != revision {
            *offers = KnownOffers::new(now, revision);
        }
        if now.since(offers.since) >= offers.wait(applied, &others) {
            return true;
        }
        let is_requested = offers.requested.is_some_and(|sent| now.since(sent) < REQUEST_TIMEOUT);
        if now >= offers.next && !is_requested {
            offers.requested = Some(now);
            let offer = (!offers.is_stored).then_some(CandidateOffer { applied, sync_revision: revision });
            self.actions.push(HaAction::Offer(OfferTxn { candidate: me, lease, offer, others }));
        }
        false
    }

    /// Handles the offers of others that were read. `None`: the request has failed.
    pub(super) fn note_offers(&mut self, now: Mono, found: Option<&[(MemberId, CandidateOffer)]>) {
        let RoleState::Standby(follower) = &mut self.role else { return };
        let Some(offers) = &mut follower.offers else { return };
        offers.requested = None;
        offers.next = now + OFFER_PAUSE;
        offers.is_stored |= found.is_some();
        let current = found.into_iter().flatten().filter(|(_, offer)| offer.sync_revision == offers.sync_revision);
        offers.applied.extend(current.map(|(id, offer)| (*id, offer.applied)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_candidate_waits_for_unknown_offers_and_longer_for_one_with_more_changes() {
        let others = [MemberId(2), MemberId(3)];
        let mut offers = KnownOffers::new(Mono::ZERO, 5);
        assert_eq!(offers.wait(7, &others), OFFERS_MAX);
        offers.applied.insert(MemberId(2), 8);
        assert_eq!(offers.wait(7, &others), YIELD_MAX);
        assert_eq!(offers.wait(8, &others), OFFERS_MAX);
        offers.applied.insert(MemberId(3), 7);
        assert_eq!(offers.wait(8, &others), Duration::ZERO, "equal copies can follow each other");
    }
}
