//! Splits an operation into slices, one per work request. Slice sizes match upstream's. No slice
//! crosses the end of a registration on either side.

/// Registered address ranges, for lookup by address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    /// Sorted by start. Ranges with the same start keep the given order.
    sorted: Vec<Span>,
    /// Whether any two ranges overlap. If so, the first range in the given order that contains the
    /// address is used, as in upstream's search.
    overlapping: bool,
}

/// A registered address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub start: u64,
    /// Length of the range, in bytes.
    pub len: u64,
    /// Position in the list from which [`Spans`] was built.
    pub index: usize,
}

impl Span {
    fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }

    fn holds(&self, address: u64) -> bool {
        address >= self.start && address < self.end()
    }
}

impl FromIterator<(u64, u64)> for Spans {
    /// Builds the table from pairs of start address and length.
    fn from_iter<I: IntoIterator<Item = (u64, u64)>>(stretches: I) -> Spans {
        let with_index = stretches.into_iter().enumerate();
        let mut sorted: Vec<Span> = with_index.map(|(index, (start, len))| Span { start, len, index }).collect();
        sorted.sort_by_key(|span| (span.start, span.index));
        let overlapping = sorted.windows(2).any(|pair| pair[0].end() > pair[1].start);
        Spans { sorted, overlapping }
    }
}

impl Spans {
    /// Returns the range that contains `address`.
    pub fn find(&self, address: u64) -> Option<Span> {
        if self.overlapping {
            return self.sorted.iter().filter(|span| span.holds(address)).min_by_key(|span| span.index).copied();
        }
        let after = self.sorted.partition_point(|span| span.start <= address);
        self.sorted[..after].last().filter(|span| span.holds(address)).copied()
    }
}

/// The rule for slice lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceRule {
    /// `MC_SLICE_SIZE`, in bytes.
    pub slice: u64,
    /// A remainder of at most this many bytes is sent with the last slice. Equals `slice` /
    /// `MC_FRAGMENT_RATIO`.
    pub fragment: u64,
    /// The longest message that the device supports, in bytes.
    pub longest: u32,
}

impl SliceRule {
    /// Combines `MC_SLICE_SIZE`, `MC_FRAGMENT_RATIO` and the device's limit.
    pub fn new(slice: u64, fragment_ratio: u64, longest: u32) -> SliceRule {
        SliceRule { slice: slice.max(1), fragment: slice / fragment_ratio.max(1), longest: longest.max(1) }
    }

    /// Returns the length of the next slice if `rest` bytes are left.
    fn next(&self, rest: u64) -> u64 {
        let wanted = if rest > self.slice.saturating_add(self.fragment) { self.slice } else { rest };
        wanted.min(u64::from(self.longest))
    }
}

/// A slice of an operation, sent as one work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceCut {
    /// Offset in the operation, in bytes.
    pub offset: u64,
    pub len: u32,
    /// Index of our range in the list from which [`Spans`] was built.
    pub local: usize,
    /// Index of the peer's range in its list.
    pub remote: usize,
}

/// The first address of the operation that is not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnregisteredAddress {
    Local(u64),
    Remote(u64),
}

/// Iterator over an operation's slices, in order. Ends after an error.
#[derive(Debug)]
pub struct SliceCuts<'a> {
    rule: SliceRule,
    local: (&'a Spans, u64),
    remote: (&'a Spans, u64),
    done: u64,
    len: u64,
}

impl<'a> SliceCuts<'a> {
    /// Splits a transfer of `len` bytes between our address `local.1` and the peer's address
    /// `remote.1`.
    pub fn new(rule: SliceRule, local: (&'a Spans, u64), remote: (&'a Spans, u64), len: u64) -> SliceCuts<'a> {
        SliceCuts { rule, local, remote, done: 0, len }
    }

    fn cut(&self) -> Result<SliceCut, UnregisteredAddress> {
        // An address beyond the end of the address space is not registered.
        let at = |(spans, start): (&Spans, u64)| {
            let address = start.checked_add(self.done)?;
            spans.find(address).map(|span| (span.index, span.end() - address))
        };
        let (local, here) = at(self.local).ok_or(UnregisteredAddress::Local(self.local.1.wrapping_add(self.done)))?;
        let (remote, there) =
            at(self.remote).ok_or(UnregisteredAddress::Remote(self.remote.1.wrapping_add(self.done)))?;
        let len = self.rule.next(self.len - self.done).min(here).min(there);
        let len = u32::try_from(len).expect("no longer than the longest message");
        Ok(SliceCut { offset: self.done, len, local, remote })
    }
}

impl Iterator for SliceCuts<'_> {
    type Item = Result<SliceCut, UnregisteredAddress>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done == self.len {
            return None;
        }
        let cut = self.cut();
        self.done = match &cut {
            Ok(cut) => self.done + u64::from(cut.len),
            Err(_) => self.len,
        };
        Some(cut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const USUAL: SliceRule = SliceRule { slice: 65_536, fragment: 16_384, longest: 1 << 30 };

    fn lengths(len: u64, local: &[(u64, u64)], remote: &[(u64, u64)]) -> Vec<u32> {
        let (local, remote): (Spans, Spans) = (local.iter().copied().collect(), remote.iter().copied().collect());
        SliceCuts::new(USUAL, (&local, 1000), (&remote, 5000), len).map(|cut| cut.unwrap().len).collect()
    }

    #[test]
    fn slice_lengths_equal_the_real_engines() {
        let whole = [(0, 1 << 40)];
        assert_eq!(SliceRule::new(65_536, 4, 1 << 30), USUAL);
        assert_eq!(lengths(100_000, &whole, &whole), [65_536, 34_464]);
        assert_eq!(lengths(200_000, &whole, &whole), [65_536, 65_536, 68_928]);
        assert_eq!(lengths(81_920, &whole, &whole), [81_920]);
        assert_eq!(lengths(81_921, &whole, &whole), [65_536, 16_385]);
        assert_eq!(lengths(1, &whole, &whole), [1]);
        assert!(lengths(0, &whole, &whole).is_empty());
    }

    #[test]
    fn no_slice_crosses_the_end_of_a_registration_on_either_side() {
        let whole = [(0, 1 << 40)];
        let split = [(0, 6000), (6000, 1 << 30)];
        assert_eq!(lengths(10_000, &split, &whole), [5000, 5000]);
        assert_eq!(lengths(10_000, &whole, &split), [1000, 9000]);
        assert_eq!(lengths(10_000, &split, &split), [1000, 4000, 5000]);
    }

    #[test]
    fn an_unregistered_address_ends_the_iteration() {
        let (here, there): (Spans, Spans) = ([(0, 100)].into_iter().collect(), [(0, 50)].into_iter().collect());
        let cuts: Vec<_> = SliceCuts::new(USUAL, (&here, 10), (&there, 20), 40).collect();
        assert_eq!(
            cuts,
            [Ok(SliceCut { offset: 0, len: 30, local: 0, remote: 0 }), Err(UnregisteredAddress::Remote(50))]
        );
        let cuts: Vec<_> = SliceCuts::new(USUAL, (&here, 100), (&there, 0), 1).collect();
        assert_eq!(cuts, [Err(UnregisteredAddress::Local(100))]);
        let top: Spans = [(u64::MAX - 10, 10)].into_iter().collect();
        let cuts: Vec<_> = SliceCuts::new(USUAL, (&top, u64::MAX - 5), (&here, 0), 50).collect();
        assert_eq!(
            cuts,
            [Ok(SliceCut { offset: 0, len: 5, local: 0, remote: 0 }), Err(UnregisteredAddress::Local(u64::MAX))]
        );
    }

    #[test]
    fn the_first_of_overlapping_ranges_is_used() {
        let spans: Spans = [(100, 50), (0, 1000), (100, 10)].into_iter().collect();
        let at = |address| spans.find(address).map(|span| span.index);
        assert_eq!((at(105), at(99), at(150), at(1000)), (Some(0), Some(1), Some(1), None));
    }

    proptest! {
        #[test]
        fn slices_cover_the_operation_once_and_stay_inside(
            here in proptest::collection::vec(1u64..200_000, 1..6), there in proptest::collection::vec(1u64..200_000, 1..6),
            len in 0u64..400_000, from in 0u64..200_000, to in 0u64..200_000, slice in 1u64..100_000, ratio in 1u64..10,
            longest in 1u32..100_000,
        ) {
            let touching = |lens: &[u64], base: u64| -> Vec<(u64, u64)> {
                lens.iter().scan(base, |at, len| { let start = *at; *at += len; Some((start, *len)) }).collect()
            };
            // Very short slices test no more than longer ones do, and are slow, so limit their
            // number.
            let len = len.min(slice.min(u64::from(longest)) * 500);
            let here = touching(&here, 1 << 20);
            let there = touching(&there, 1 << 30);
            let (local, remote): (Spans, Spans) = (here.iter().copied().collect(), there.iter().copied().collect());
            let start = (1 << 20) + from;
            let target = (1 << 30) + to;
            let mut done = 0;
            for cut in SliceCuts::new(SliceRule::new(slice, ratio, longest), (&local, start), (&remote, target), len) {
                match cut {
                    Ok(cut) => {
                        prop_assert_eq!(cut.offset, done);
                        prop_assert!(cut.len > 0 && cut.len <= longest);
                        done += u64::from(cut.len);
                        for (range, first) in [(here[cut.local], start), (there[cut.remote], target)] {
                            prop_assert!(first + cut.offset >= range.0 && first + done <= range.0 + range.1);
                        }
                    }
                    Err(uncovered) => {
                        let end = |list: &[(u64, u64)]| list.last().map(|(at, len)| at + len).unwrap();
                        match uncovered {
                            UnregisteredAddress::Local(at) => prop_assert!(at == start + done && at >= end(&here)),
                            UnregisteredAddress::Remote(at) => prop_assert!(at == target + done && at >= end(&there)),
                        }
                        return Ok(());
                    }
                }
            }
            prop_assert_eq!(done, len);
        }
    }
}
