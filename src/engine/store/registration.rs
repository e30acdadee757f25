//! Whether a node's remount is the registration that follows its start.

/// What the node has told the master about its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MasterRegistration {
    /// No segment has been mounted.
    #[default]
    None,
    /// Segments have been mounted, and the client has not registered yet.
    Mounted {
        /// Number of connections to the master that had been lost before the first mount.
        losses: u64,
    },
    /// The client has registered, or has tried to.
    Registered,
}

impl MasterRegistration {
    /// Records that a segment was mounted. `losses` is the number of connections to the master that
    /// had been lost before.
    pub(crate) fn mounted(&mut self, losses: u64) {
        if *self == MasterRegistration::None {
            *self = MasterRegistration::Mounted { losses };
        }
    }

    /// Records that the client registers. Returns true if this is the registration that follows the
    /// first mount, at the same process of the master. Otherwise, a process of the master that is
    /// gone may have assigned the node's memory to objects. `losses` is the number of connections
    /// that have been lost so far.
    pub(crate) fn register(&mut self, losses: u64) -> bool {
        std::mem::replace(self, MasterRegistration::Registered) == MasterRegistration::Mounted { losses }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_registration_that_follows_the_first_mount_is_the_first() {
        let mut registration = MasterRegistration::default();
        registration.mounted(3);
        registration.mounted(4);
        let mut restarted = registration;
        assert!(!restarted.register(4), "the master may have restarted after the first mount");
        assert!(registration.register(3));
        registration.mounted(3);
        assert!(!registration.register(3));
        assert!(!MasterRegistration::default().register(0));
    }
}
