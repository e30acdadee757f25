//! Typed indices for the master's tables, so that a slot of one table cannot be used with another.

macro_rules! slot {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(super) struct $name(pub u32);
    };
}

macro_rules! vector_slot {
    ($($name:ident),*) => {$(
        impl $name {
            /// The slot at `index` of the table's vector.
            ///
            /// # Panics
            /// If `index` is 2^32 or more. The tables have fewer slots.
            pub(crate) fn from_index(index: usize) -> $name {
                $name(u32::try_from(index).expect("fewer than 2^32 slots"))
            }

            /// The slot's index in the table's vector.
            #[inline]
            pub(crate) fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

slot! {
    /// Index of an object record in `ObjectTable`.
    ObjectSlot
}
slot! {
    /// Index of a segment in `SegmentTable`.
    SegmentSlot
}
slot! {
    /// Index of a writer id in `OwnerTable`.
    OwnerSlot
}
slot! {
    /// Index of a group in `GroupTable`.
    GroupSlot
}
vector_slot!(SegmentSlot, OwnerSlot, GroupSlot);

impl OwnerSlot {
    /// The owner of an object that is not being written.
    pub(crate) const NONE: OwnerSlot = OwnerSlot(u32::MAX);
}

impl ObjectSlot {
    /// Represents "none" in links between records.
    pub(crate) const NIL: ObjectSlot = ObjectSlot(u32::MAX);
}
