//! A batch as parts that movers take one after another. Large operations are cut when several threads move them; small ones go
//! together as a run.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::engine::sys::Slice;
use crate::engine::transfer::tcp::lane::Request;
use crate::engine::transfer::transport::Op;

/// Most bytes that go out together.
pub(super) const RUN_BYTES: usize = 256 << 10;

/// The parts of a batch.
pub(super) struct Work<'a> {
    ops: &'a [Op],
    /// Only where operations are cut; else each is a part.
    cuts: Option<Vec<Cut>>,
    next: AtomicUsize,
}

struct Cut {
    op: usize,
    offset: usize,
    length: usize,
}

impl<'a> Work<'a> {
    /// Every operation as one part.
    pub(super) fn whole(ops: &'a [Op]) -> Work<'a> {
        Work { ops, cuts: None, next: AtomicUsize::new(0) }
    }

    /// Operations above `bytes` in parts of that size.
    pub(super) fn cut(ops: &'a [Op], bytes: usize) -> Work<'a> {
        let parts = |(op, o): (usize, &Op)| {
            let total = o.local.len();
            let starts = (0..total).step_by(bytes);
            starts.map(move |offset| Cut { op, offset, length: bytes.min(total - offset) }).collect::<Vec<_>>()
        };
        Work { ops, cuts: Some(ops.iter().enumerate().flat_map(parts).collect()), next: AtomicUsize::new(0) }
    }

    /// The next part that nobody has taken. Operations of no bytes are done without asking, since targets refuse them.
    pub(super) fn next(&self) -> Option<Request> {
        let part = self.next.fetch_add(1, Ordering::Relaxed);
        match &self.cuts {
            None if self.ops.get(part).is_some_and(|op| op.local.is_empty()) => self.next(),
            None => self.ops.get(part).map(|op| request(part, op, op.local.clone(), 0)),
            Some(cuts) => {
                let cut = cuts.get(part)?;
                let op = &self.ops[cut.op];
                let slice = op.local.part(cut.offset, cut.length).expect("cut inside the slice");
                Some(request(cut.op, op, slice, cut.offset))
            }
        }
    }

    /// The next parts that nobody has taken, to go out together: at most `most`, all one way, and of [`RUN_BYTES`] unless it is one
    /// alone. Empty when there is none.
    pub(super) fn next_run(&self, most: usize) -> Vec<Request> {
        let mut run: Vec<Request> = self.next().into_iter().collect();
        let mut bytes: usize = run.iter().map(|first| first.local.len()).sum();
        while let Some(first) = run.first()
            && run.len() < most
        {
            let mut left = self.ops.iter().skip(self.next.load(Ordering::Relaxed));
            let fits = |op: &Op| op.kind == first.kind && bytes + op.local.len() <= RUN_BYTES;
            // Parts that several threads take are large, and go alone.
            let fits = self.cuts.is_none() && left.find(|op| !op.local.is_empty()).is_some_and(fits);
            let Some(next) = fits.then(|| self.next()).flatten() else { break };
            bytes += next.local.len();
            run.push(next);
        }
        run
    }

    /// Is there a part that nobody has taken?
    pub(super) fn has_more(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.cuts.as_ref().map_or(self.ops.len(), Vec::len)
    }
}

fn request(number: usize, op: &Op, local: Slice, offset: usize) -> Request {
    Request { op: number, before: None, kind: op.kind, local, remote: op.remote.0.wrapping_add(offset as u64) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::sys::Memory;
    use crate::engine::transfer::transport::{OpKind, RemoteAddr};
    use proptest::prelude::*;
    use std::sync::Arc;

    proptest! {
        #[test]
        fn the_parts_of_a_batch_are_its_bytes_once_each(sizes in proptest::collection::vec(0usize..5000, 1..6), cut in 1usize..3000) {
            let memory = Arc::new(Memory::from_vec(vec![0; sizes.iter().sum()]));
            let mut offset = 0;
            let ops: Vec<Op> = sizes.iter().map(|len| {
                let local = memory.slice(offset, *len).unwrap();
                let remote = RemoteAddr(1_000_000 + offset as u64);
                offset += len;
                Op { kind: OpKind::Read, local, remote }
            }).collect();
            for work in [Work::whole(&ops), Work::cut(&ops, cut)] {
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
        fn runs_are_the_batch_in_order_each_one_way_and_within_its_bounds(
            ops in proptest::collection::vec((proptest::bool::ANY, 0usize..RUN_BYTES * 2 / 3), 1..40), most in 1usize..32,
        ) {
            let memory = Arc::new(Memory::from_vec(vec![0; RUN_BYTES]));
            let ops: Vec<Op> = ops.into_iter().map(|(write, len)| {
                let kind = if write { OpKind::Write } else { OpKind::Read };
                Op { kind, local: memory.slice(0, len).unwrap(), remote: RemoteAddr(5) }
            }).collect();
            let work = Work::whole(&ops);
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
