//! The waits of requests and of the ticker for room in the log.

use std::time::Duration;

use crate::service::commit_log::CommitLog;
use mcctl_base::Mono;
use mcctl_sys::env::Env;

impl CommitLog {
    /// Whether more requests may change the state now. Also true after an error of the disk, so
    /// that its outcome is seen.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.writer.has_room() || self.has_failed()
    }

    /// Whether background work may change the state now.
    pub fn permits_tick(&self) -> bool {
        self.has_failed() || self.writer.has_room() && !self.room.is_awaited()
    }

    /// Waits until more requests may change the state.
    pub async fn wait_for_room(&self, env: &impl Env) {
        let _waiting = self.room.enter();
        let mut progress = self.subscribe();
        while !self.has_room() {
            self.room.note_wait(env.now());
            self.request_room();
            if progress.changed().await.is_err() {
                return;
            }
        }
    }

    /// Passes all changes to the kernel, and creates the files that they need. Waits for the disk.
    pub fn make_room(&self) {
        if !self.has_failed()
            && let Err(error) = self.writer.make_room()
        {
            self.fail(error);
        }
    }

    /// Time for which the disk has stalled while changes wait for it. `None`: it has not stalled,
    /// or nothing waits.
    pub fn stalled_for(&self, now: Mono) -> Option<Duration> {
        let stalled = self.room.stalled_for(now)?;
        let is_awaited = self.room.has_waiting() || self.has_waiting_responses();
        (!self.has_failed() && is_awaited).then_some(stalled)
    }
}
