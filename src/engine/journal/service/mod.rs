//! The service that a process uses for its log: group commit, the policy for errors of the disk,
//! the times of syncs, and the schedule of snapshots.
//!
//! A [`CommitLog`] is shared by the threads that change a state, its [`LogThread`], which waits for
//! the disk, and its [`SnapshotThread`]. The state is a [`LoggedState`] and a [`SnapshotSource`].

mod commit_log;
mod log_room;
mod log_thread;
mod log_wait;
mod logged_state;
mod options;
mod snapshot_mark;
mod snapshots;
mod view;

pub use commit_log::{CommitLog, LogOutcome, LogWork};
pub use log_room::LogRoom;
pub use log_thread::LogThread;
pub use logged_state::{LoggedState, SnapshotBegin, SnapshotSlice, SnapshotSource};
pub use options::{CommitLogOptions, LogSubject, SNAPSHOT_LOG_BYTES};
pub use snapshot_mark::FoundData;
pub use snapshots::{CHUNK_KIND, SnapshotRun, SnapshotThread, StateSnapshots, complete_log};
pub use view::DataView;
