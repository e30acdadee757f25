//! The receipt of a call: what its response waits for.

/// What the responses to one or more calls wait for before they are sent.
///
/// [`RpcService::answer`](crate::rpc::RpcService::answer) returns the receipt of a call, and
/// [`RpcService::commit`](crate::rpc::RpcService::commit) consumes it. The default receipt belongs
/// to no call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "the response to the call must not be sent before its receipt is committed"]
pub struct Receipt {
    /// In a cluster: the term in which the state served the calls. The responses are sent only in
    /// this term. 0: the calls have not used the state, or the service is not in a cluster.
    pub term: u64,
    /// Number of the last change that the responses report, or 0. In a cluster, they wait until the
    /// required standbys have it. The change is the calls' own, or that of earlier calls which they
    /// repeat.
    pub last: u64,
    /// Number of the last of these changes that must be durable before the responses are sent, or
    /// 0.
    pub needs_sync: u64,
    /// In a cluster: number of the last of these changes that hands out or frees memory, or 0. It
    /// waits for the required standbys in every mode.
    pub needs_standby: u64,
    /// In a cluster: number of the last of these changes after which a client overwrites memory, or
    /// misses an object that it has removed or replaced, or 0. It waits for the removal of the
    /// barrier, in every mode.
    pub needs_barrier: u64,
}

impl Receipt {
    /// The term of a receipt for calls of several terms. It is never the current term, so their
    /// responses are never sent.
    pub const MIXED_TERMS: u64 = u64::MAX;

    /// Adds the receipt of another call, whose response is sent together with the responses to the
    /// calls of this one.
    #[inline]
    pub fn merge(&mut self, other: Receipt) {
        self.term = match (self.term, other.term) {
            (term, 0) | (0, term) => term,
            (term, other) if term == other => term,
            _ => Receipt::MIXED_TERMS,
        };
        self.last = self.last.max(other.last);
        self.needs_sync = self.needs_sync.max(other.needs_sync);
        self.needs_standby = self.needs_standby.max(other.needs_standby);
        self.needs_barrier = self.needs_barrier.max(other.needs_barrier);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(receipts: &[Receipt]) -> Receipt {
        let mut merged = Receipt::default();
        receipts.iter().for_each(|receipt| merged.merge(*receipt));
        merged
    }

    #[test]
    fn a_merged_receipt_waits_for_the_changes_of_all_calls() {
        let durable = Receipt { term: 3, last: 7, needs_sync: 7, needs_standby: 7, needs_barrier: 6 };
        let read = Receipt { term: 3, last: 0, ..Receipt::default() };
        let later = Receipt { term: 3, last: 9, ..Receipt::default() };
        assert_eq!(merged(&[durable, read]), durable);
        assert_eq!(merged(&[Receipt::default(), durable, Receipt::default()]), durable);
        assert_eq!(merged(&[read, durable, later]), Receipt { last: 9, ..durable });
    }

    #[test]
    fn a_receipt_of_two_terms_stays_mixed() {
        let of = |term| Receipt { term, ..Receipt::default() };
        for terms in [&[1, 2][..], &[2, 1], &[1, 2, 2], &[1, 2, 0, 1], &[0, 1, 0, 2]] {
            let receipts: Vec<Receipt> = terms.iter().map(|term| of(*term)).collect();
            assert_eq!(merged(&receipts).term, Receipt::MIXED_TERMS, "{terms:?}");
        }
    }
}
