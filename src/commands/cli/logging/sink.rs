//! A bounded queue of lines and a thread that writes them, so that callers do not wait for a disk,
//! terminal or pipe.
//!
//! If the queue is full, lines are dropped and counted. When the writer makes progress again, it
//! logs the number of dropped lines at the position of the gap.

use std::cell::Cell;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::engine::env::{Env, RealEnv};

/// Maximum size of the queued lines, in bytes. The writer may buffer the same amount again.
const QUEUE_BYTES_MAX: usize = 1 << 20;
/// Maximum wait for queued lines to be written.
pub(super) const FLUSH_MAX: Duration = Duration::from_secs(1);
/// Delay between attempts to write to a full non-blocking stderr.
const RETRY: Duration = Duration::from_millis(10);

thread_local! {
    /// Whether this thread is a sink's writer.
    static IS_WRITER: Cell<bool> = const { Cell::new(false) };
}

/// The destination of lines. Its methods may block.
pub(super) trait LineOutput: Send + 'static {
    /// Writes whole lines. The output handles its own errors.
    fn write(&mut self, lines: &[u8]);

    /// Reopens the output's file, if it has one.
    fn reopen(&mut self) {}
}

/// A queue with its writer thread.
pub(super) struct Sink {
    shared: Arc<SinkShared>,
    /// False if the thread could not be started. Callers then write synchronously.
    has_writer: bool,
}

struct SinkShared {
    queue: Mutex<LineQueue>,
    /// Notified when the writer has work.
    filled: Condvar,
    /// Notified when the writer has finished a batch.
    written: Condvar,
    output: Mutex<Box<dyn LineOutput>>,
}

#[derive(Default)]
struct LineQueue {
    lines: Vec<u8>,
    /// Lines dropped since the last batch.
    dropped: u64,
    /// Number of accepted pushes.
    accepted: u64,
    /// Number of accepted pushes that were written.
    written: u64,
    reopen: bool,
    /// Whether a wait for the writer has timed out and the writer has written nothing since.
    stalled: bool,
}

impl Sink {
    /// Starts a sink that writes to `output`. Its thread is named `name`.
    pub(super) fn start(name: &str, output: impl LineOutput) -> Sink {
        let shared = Arc::new(SinkShared {
            queue: Mutex::default(),
            filled: Condvar::new(),
            written: Condvar::new(),
            output: Mutex::new(Box::new(output)),
        });
        let writer = shared.clone();
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || writer.run());
        Sink { shared, has_writer: thread.is_ok() }
    }

    /// Queues `line`, which ends with a newline. If the queue is full, the line is dropped and
    /// counted.
    pub(super) fn push(&self, line: &[u8]) {
        if !self.has_writer {
            return self.write_here(line);
        }
        let mut queue = lock(&self.shared.queue);
        if IS_WRITER.get() {
            // The writer's message about a gap precedes the lines that were queued after the gap.
            queue.lines.splice(0..0, line.iter().copied());
        } else if !queue.lines.is_empty() && queue.lines.len() + line.len() > QUEUE_BYTES_MAX {
            queue.dropped += 1;
            return;
        } else {
            queue.lines.extend_from_slice(line);
        }
        queue.accepted += 1;
        drop(queue);
        self.shared.filled.notify_one();
    }

    fn write_here(&self, line: &[u8]) {
        // Lines that the output itself logs during the write are dropped.
        if !IS_WRITER.replace(true) {
            lock(&self.shared.output).write(line);
            IS_WRITER.set(false);
        }
    }

    /// Queues `line` and waits at most [`FLUSH_MAX`] until it is written. Does not wait while the
    /// writer is stalled.
    pub(super) fn push_and_wait(&self, line: &[u8]) {
        self.push(line);
        let is_stalled = lock(&self.shared.queue).stalled;
        if !is_stalled && !IS_WRITER.get() {
            self.flush(FLUSH_MAX);
        }
    }

    /// Waits at most `limit` until all queued lines have been written. Returns whether they have.
    pub(super) fn flush(&self, limit: Duration) -> bool {
        let queue = lock(&self.shared.queue);
        let upto = queue.accepted;
        let waited = self.shared.written.wait_timeout_while(queue, limit, |queue| queue.written < upto);
        let (mut queue, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        queue.stalled |= timeout.timed_out();
        !timeout.timed_out()
    }

    /// Requests that the writer reopen its file after the queued lines.
    pub(super) fn reopen(&self) {
        lock(&self.shared.queue).reopen = true;
        self.shared.filled.notify_one();
    }
}

impl SinkShared {
    fn run(&self) {
        IS_WRITER.set(true);
        loop {
            let queue = lock(&self.queue);
            let idle = |queue: &mut LineQueue| queue.lines.is_empty() && queue.dropped == 0 && !queue.reopen;
            let mut queue = self.filled.wait_while(queue, idle).unwrap_or_else(PoisonError::into_inner);
            let lines = std::mem::take(&mut queue.lines);
            let dropped = std::mem::take(&mut queue.dropped);
            let reopen = std::mem::take(&mut queue.reopen);
            let upto = queue.accepted;
            drop(queue);
            let mut output = lock(&self.output);
            output.write(&lines);
            if reopen {
                output.reopen();
            }
            drop(output);
            if dropped > 0 {
                tracing::warn!(dropped, "log lines were dropped: the disk or the process reading the log was too slow");
            }
            let mut queue = lock(&self.queue);
            queue.written = upto;
            queue.stalled = false;
            drop(queue);
            self.written.notify_all();
        }
    }
}

/// Locks `mutex` even if it is poisoned: after a panic with the mutex locked, the queue still
/// consists of whole lines.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sink for stderr. The first call starts it.
pub(super) fn stderr() -> &'static Sink {
    STDERR.get_or_init(|| Sink::start("stderr", StderrOutput))
}

/// Waits at most `limit` until the lines for stderr have been written.
pub(super) fn flush_stderr(limit: Duration) {
    if let Some(sink) = STDERR.get() {
        sink.flush(limit);
    }
}

static STDERR: OnceLock<Sink> = OnceLock::new();

struct StderrOutput;

impl LineOutput for StderrOutput {
    fn write(&mut self, mut lines: &[u8]) {
        while !lines.is_empty() {
            match io::stderr().write(lines) {
                Ok(0) => return,
                Ok(count) => lines = &lines[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Another process may have made the shared open file non-blocking.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => RealEnv::new().pause_thread(RETRY),
                // The process reading stderr has closed the pipe.
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Time limit for waits, long enough for a busy machine.
    const PATIENCE: Duration = Duration::from_secs(30);

    /// Sends each batch to the test when the test permits it.
    struct GatedOutput {
        permits: Receiver<()>,
        batches: Sender<Vec<u8>>,
    }

    impl LineOutput for GatedOutput {
        fn write(&mut self, lines: &[u8]) {
            let _ = self.permits.recv();
            let _ = self.batches.send(lines.to_vec());
        }
    }

    fn gated() -> (Sink, Sender<()>, Receiver<Vec<u8>>) {
        let (permit, permits) = channel();
        let (batches, batch) = channel();
        (Sink::start("test", GatedOutput { permits, batches }), permit, batch)
    }

    #[test]
    fn a_stalled_output_blocks_no_caller_and_the_queue_is_bounded() {
        let (sink, permit, batch) = gated();
        sink.push(b"held by the writer\n");
        while !lock(&sink.shared.queue).lines.is_empty() {
            std::thread::yield_now();
        }
        let line = vec![b'x'; 1 << 10];
        let pushed = 3 * (QUEUE_BYTES_MAX >> 10);
        for _ in 0..pushed {
            sink.push(&line);
        }
        let (queued, dropped) = {
            let queue = lock(&sink.shared.queue);
            (queue.lines.len(), queue.dropped)
        };
        assert_eq!((queued, dropped), (QUEUE_BYTES_MAX, (pushed - (QUEUE_BYTES_MAX >> 10)) as u64));
        assert!(!sink.flush(Duration::from_millis(1)));
        assert!(lock(&sink.shared.queue).stalled);
        // The output accepts lines again.
        drop(permit);
        assert!(sink.flush(PATIENCE));
        let written: usize = batch.try_iter().map(|lines| lines.len()).sum();
        assert!(written >= QUEUE_BYTES_MAX, "{written}");
        assert!(!lock(&sink.shared.queue).stalled);
    }

    #[test]
    fn lines_are_written_in_order_and_flush_waits_for_them() {
        let (sink, permit, batch) = gated();
        drop(permit);
        sink.push(b"1\n");
        sink.push_and_wait(b"2\n");
        sink.push_and_wait(b"3\n");
        let all: Vec<u8> = batch.try_iter().flatten().collect();
        assert_eq!(all, b"1\n2\n3\n");
    }
}
