//! Splits a batch into requests, which mover threads take one after another. Large operations are
//! split into chunks if several threads move them. Small ones are sent together in a run.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::tcp::connection::RangeRequest;
use crate::types::Op;
use mcctl_sys::Slice;

/// Maximum number of bytes in a run.
pub(super) const RUN_BYTES: usize = 256 << 10;

/// The requests of a batch.
pub(super) struct BatchRequests<'a> {
    ops: &'a [Op],
    /// Set only if operations are split into chunks. Otherwise each operation is one request.
    cuts: Option<Vec<OpPart>>,
    next: AtomicUsize,
}

struct OpPart {
    op: usize,
    offset: usize,
    length: usize,
}

impl<'a> BatchRequests<'a> {
    /// Creates one request per operation.
    pub(super) fn whole(ops: &'a [Op]) -> BatchRequests<'a> {
        BatchRequests { ops, cuts: None, next: AtomicUsize::new(0) }
    }

    /// Splits operations larger than `bytes` into chunks of that size.
    pub(super) fn cut(ops: &'a [Op], bytes: usize) -> BatchRequests<'a> {
        let parts = |(op, o): (usize, &Op)| {
            let total = o.local.len();
            let starts = (0..total).step_by(bytes);
            starts.map(move |offset| OpPart { op, offset, length: bytes.min(total - offset) }).collect::<Vec<_>>()
        };
        BatchRequests { ops, cuts: Some(ops.iter().enumerate().flat_map(parts).collect()), next: AtomicUsize::new(0) }
    }

    /// Takes the next request. Zero-byte operations succeed without a request, since targets reject
    /// them.
    pub(super) fn next(&self) -> Option<RangeRequest> {
        let part = self.next.fetch_add(1, Ordering::Relaxed);
        match &self.cuts {
            None if self.ops.get(part).is_some_and(|op| op.local.is_empty()) => self.next(),
            None => self.ops.get(part).map(|op| request(part, op, op.local.clone(), 0)),
            Some(cuts) => {
                let cut = cuts.get(part)?;
                let op = &self.ops[cut.op];
                let slice = op.local.part(cut.offset, cut.length).expect("part lies within the slice");
                Some(request(cut.op, op, slice, cut.offset))
            }
        }
    }

    /// Takes the next run: at most `most` requests in one direction, and at most [`RUN_BYTES`] in
    /// total unless the run is a single request. Returns an empty run if no requests are left.
    pub(super) fn next_run(&self, most: usize) -> Vec<RangeRequest> {
        let mut run: Vec<RangeRequest> = self.next().into_iter().collect();
        let mut bytes: usize = run.iter().map(|first| first.local.len()).sum();
        while let Some(first) = run.first()
            && run.len() < most
        {
            let mut left = self.ops.iter().skip(self.next.load(Ordering::Relaxed));
            let fits = |op: &Op| op.kind == first.kind && bytes + op.local.len() <= RUN_BYTES;
            // Chunks distributed among several threads are large, so each is sent in a run of its
            // own.
            let fits = self.cuts.is_none() && left.find(|op| !op.local.is_empty()).is_some_and(fits);
            let Some(next) = fits.then(|| self.next()).flatten() else { break };
            bytes += next.local.len();
            run.push(next);
        }
        run
    }

    /// Whether any requests are left.
    pub(super) fn has_more(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.cuts.as_ref().map_or(self.ops.len(), Vec::len)
    }
}

fn request(number: usize, op: &Op, local: Slice, offset: usize) -> RangeRequest {
    RangeRequest { op: number, before: None, kind: op.kind, local, remote: op.remote.0.wrapping_add(offset as u64) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{OpKind, RemoteAddr};
    use mcctl_sys::Memory;
    use proptest::prelude::*;
    use std::sync::Arc;

    proptest! {
        #[test]
        fn parts_cover_the_batch_exactly_once(sizes in proptest::collection::vec(0usize..5000, 1..6), cut in 1usize..3000) {
            let memory = Arc::new(Memory::from_vec(vec![0; sizes.iter().sum()]));
            let mut offset = 0;
            let ops: Vec<Op> = sizes.iter().map(|len| {
                let local = memory.slice(offset, *len).unwrap();
                let remote = RemoteAddr(1_000_000 + offset as u64);
                offset += len;
                Op { kind: OpKind::Read, local, remote }
            }).collect();
            for work in [BatchRequests::whole(&ops), BatchRequests::cut(&ops, cut)] {
                let mut end = 0;
                while let Some(part) = work.next() {
                    prop_assert_eq!(part.local.offset(), end);
                    prop_assert_eq!(part.remote, 1_000_000 + end as u64);
                    prop_assert!(part.local.address() >= ops[part.op].local.address());
                    end += part.local.len();
                }
                prop_assert_eq!(end, offset);
                prop_assert!(!work.has_more());
            }
        }

        #[test]
        fn runs_keep_order_direction_and_size_limits(
            ops in proptest::collection::vec((proptest::bool::ANY, 0usize..RUN_BYTES * 2 / 3), 1..40), most in 1usize..32,
        ) {
            let memory = Arc::new(Memory::from_vec(vec![0; RUN_BYTES]));
            let ops: Vec<Op> = ops.into_iter().map(|(write, len)| {
                let kind = if write { OpKind::Write } else { OpKind::Read };
                Op { kind, local: memory.slice(0, len).unwrap(), remote: RemoteAddr(5) }
            }).collect();
            let work = BatchRequests::whole(&ops);
            let mut taken = Vec::new();
            loop {
                let run = work.next_run(most);
                let Some(first) = run.first() else { break };
                prop_assert!(run.len() <= most);
                prop_assert!(run.iter().map(|one| one.local.len()).sum::<usize>() <= RUN_BYTES);
                prop_assert!(run.iter().all(|one| one.kind == first.kind));
                taken.extend(run.iter().map(|one| one.op));
            }
            let wanted: Vec<usize> = (0..ops.len()).filter(|n| !ops[*n].local.is_empty()).collect();
            prop_assert_eq!(taken, wanted);
        }
    }
}
