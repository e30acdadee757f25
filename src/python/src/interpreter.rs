//! Work without the interpreter's lock, and what threads do while the interpreter exits.

use std::sync::OnceLock;
use std::thread::{self, ThreadId};
use std::time::Duration;

use pyo3::Python;

/// How long a thread waits for the end of the process while the interpreter exits. It waits no longer, because a function that runs at exit
/// may join the thread.
const EXIT_WAIT: Duration = Duration::from_secs(30);

/// The thread in which the interpreter exits, once it does.
static EXITING: OnceLock<ThreadId> = OnceLock::new();

/// Runs `operation` without the interpreter's lock.
///
/// While the interpreter exits, the threads that take its lock are ended by an exception that unwinds the stack (`pthread_exit`). That fails
/// in the frames of this library if it contains an unwinder of its own. So a daemon thread does not take the lock again.
#[expect(clippy::disallowed_methods, reason = "a thread of the caller waits for the end of the process")]
pub fn detached<T: Send>(py: Python<'_>, operation: impl Send + FnOnce() -> T) -> T {
    py.detach(|| {
        let result = operation();
        if EXITING.get().is_some_and(|exiting| *exiting != thread::current().id()) {
            thread::sleep(EXIT_WAIT);
        }
        result
    })
}

/// Call it in the thread in which the interpreter exits.
pub fn exits() {
    let _ = EXITING.set(thread::current().id());
}
