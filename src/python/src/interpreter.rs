//! Work without the interpreter's lock, and the threads while the interpreter exits.

use std::pin::pin;
use std::sync::OnceLock;
use std::thread::{self, ThreadId};
use std::time::Duration;

use mcctl_sys::env::{Env, deadline};
use pyo3::{PyResult, Python};

/// Maximum time for which a thread waits for the end of the process while the interpreter exits. It
/// is limited because a function that runs at exit may join the thread.
const EXIT_WAIT: Duration = Duration::from_secs(30);

/// Time between two runs of the signal handlers during a long wait.
const SIGNAL_CHECK: Duration = Duration::from_millis(200);

/// The thread in which the interpreter exits, once it does.
static EXITING: OnceLock<ThreadId> = OnceLock::new();

/// Runs `operation` without the interpreter's lock.
///
/// While the interpreter exits, the threads that take its lock are ended by an exception that
/// unwinds the stack (`pthread_exit`). That fails in the frames of this library if it contains an
/// unwinder of its own. So a daemon thread does not take the lock again.
#[expect(clippy::disallowed_methods, reason = "a thread of the caller waits for the end of the process")]
pub(crate) fn detached<T: Send>(py: Python<'_>, operation: impl Send + FnOnce() -> T) -> T {
    py.detach(|| {
        let result = operation();
        if exits_elsewhere() {
            thread::sleep(EXIT_WAIT);
        }
        result
    })
}

/// Waits for a long `operation` without the interpreter's lock. Takes it from time to time to run
/// the handlers of signals, which Python does only in its main thread.
///
/// # Errors
/// A handler has raised an exception, such as `KeyboardInterrupt`. The operation is then dropped.
pub(crate) async fn interruptible<T>(env: &impl Env, operation: impl Future<Output = T>) -> PyResult<T> {
    let mut operation = pin!(operation);
    loop {
        if let Ok(done) = deadline(env, SIGNAL_CHECK, operation.as_mut()).await {
            return Ok(done);
        }
        if !exits_elsewhere() {
            Python::attach(|py| py.check_signals())?;
        }
    }
}

/// Whether the interpreter exits in another thread.
fn exits_elsewhere() -> bool {
    EXITING.get().is_some_and(|exiting| *exiting != thread::current().id())
}

/// Call it in the thread in which the interpreter exits.
pub(crate) fn exits() {
    let _ = EXITING.set(thread::current().id());
}
