//! A bounded queue of lines and the thread that writes them: no caller waits for the disk, terminal or pipe behind it.
//!
//! A full queue drops lines and counts them. When the writer gets through again, it logs the count at the place of the gap.

use std::cell::Cell;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::engine::env::{Env, RealEnv};

/// Bytes of lines that wait for the writer; as many again may be in its hands.
const QUEUE_BYTES_MAX: usize = 1 << 20;
/// The longest wait for lines that should be out before the caller goes on.
pub const FLUSH_MAX: Duration = Duration::from_secs(1);
/// Pause between two attempts to write to a non-blocking stderr that is full.
const RETRY: Duration = Duration::from_millis(10);

thread_local! {
    /// Is this thread the writer of a sink?
    static IS_WRITER: Cell<bool> = const { Cell::new(false) };
}

/// Where the writer puts lines. It may block.
pub trait Output: Send + 'static {
    /// Write whole lines. Failures are the output's own affair.
    fn write(&mut self, lines: &[u8]);

    /// Open the file behind it again, if there is one.
    fn reopen(&mut self) {}
}

/// A queue with its writer thread.
pub struct Sink {
    shared: Arc<Shared>,
    /// False where the host refused the thread: callers then write themselves.
    has_writer: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    /// The writer has something to do.
    filled: Condvar,
    /// The writer has finished a batch.
    written: Condvar,
    output: Mutex<Box<dyn Output>>,
}

#[derive(Default)]
struct Queue {
    /// Whole lines, one after the other.
    lines: Vec<u8>,
    /// Lines that found no room since the last batch.
    dropped: u64,
    /// Pushes accepted so far, and those of them that were written.
    accepted: u64,
    written: u64,
    reopen: bool,
    /// A wait for the writer was in vain, and it has written nothing since.
    stalled: bool,
}

impl Sink {
    /// A sink over `output`, whose thread is called `name`.
    pub fn start(name: &str, output: impl Output) -> Sink {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            filled: Condvar::new(),
            written: Condvar::new(),
            output: Mutex::new(Box::new(output)),
        });
        let writer = shared.clone();
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || writer.run());
        Sink { shared, has_writer: thread.is_ok() }
    }

    /// Queue `line`, which ends with a newline. It is dropped and counted when the queue is full.
    pub fn push(&self, line: &[u8]) {
        if !self.has_writer {
            return self.write_here(line);
        }
        let mut queue = lock(&self.shared.queue);
        if IS_WRITER.get() {
            // The writer's own line about a gap: it belongs before everything that was queued after the gap.
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
        // What the output itself logs meanwhile is left out.
        if !IS_WRITER.replace(true) {
            lock(&self.shared.output).write(line);
            IS_WRITER.set(false);
        }
    }

    /// Queue `line` and wait until it is written, for at most [`FLUSH_MAX`]; not at all while the writer is known to be stalled.
    pub fn push_and_wait(&self, line: &[u8]) {
        self.push(line);
        let is_stalled = lock(&self.shared.queue).stalled;
        if !is_stalled && !IS_WRITER.get() {
            self.flush(FLUSH_MAX);
        }
    }

    /// Wait until everything queued so far is written, for at most `limit`. Returns whether it is.
    pub fn flush(&self, limit: Duration) -> bool {
        let queue = lock(&self.shared.queue);
        let upto = queue.accepted;
        let waited = self.shared.written.wait_timeout_while(queue, limit, |queue| queue.written < upto);
        let (mut queue, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        queue.stalled |= timeout.timed_out();
        !timeout.timed_out()
    }

    /// Have the writer open its file again, behind the lines that are queued.
    pub fn reopen(&self) {
        lock(&self.shared.queue).reopen = true;
        self.shared.filled.notify_one();
    }
}

impl Shared {
    fn run(&self) {
        IS_WRITER.set(true);
        loop {
            let queue = lock(&self.queue);
            let idle = |queue: &mut Queue| queue.lines.is_empty() && queue.dropped == 0 && !queue.reopen;
            let mut queue = self.filled.wait_while(queue, idle).unwrap_or_else(PoisonError::into_inner);
            let lines = std::mem::take(&mut queue.lines);
            let (dropped, reopen) = (std::mem::take(&mut queue.dropped), std::mem::take(&mut queue.reopen));
            let upto = queue.accepted;
            drop(queue);
            let mut output = lock(&self.output);
            output.write(&lines);
            if reopen {
                output.reopen();
            }
            drop(output);
            if dropped > 0 {
                tracing::warn!(dropped, "log lines were dropped: the log's reader or disk was too slow");
            }
            let mut queue = lock(&self.queue);
            queue.written = upto;
            queue.stalled = false;
            drop(queue);
            self.written.notify_all();
        }
    }
}

/// A panic while it was held leaves whole lines behind.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sink of this process's stderr, started by its first use.
pub fn stderr() -> &'static Sink {
    STDERR.get_or_init(|| Sink::start("stderr", Stderr))
}

/// Wait for what was written to stderr, if anything was, for at most `limit`.
pub fn flush_stderr(limit: Duration) {
    if let Some(sink) = STDERR.get() {
        sink.flush(limit);
    }
}

static STDERR: OnceLock<Sink> = OnceLock::new();

struct Stderr;

impl Output for Stderr {
    fn write(&mut self, mut lines: &[u8]) {
        while !lines.is_empty() {
            match io::stderr().write(lines) {
                Ok(0) => return,
                Ok(count) => lines = &lines[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Another process may have made the shared file description non-blocking.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => RealEnv::new().pause_thread(RETRY),
                // The reader has gone.
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Nothing here takes longer, even on a busy machine.
    const PATIENCE: Duration = Duration::from_secs(30);

    /// Hands batches over, each only when the test permits it.
    struct Gated {
        permits: Receiver<()>,
        batches: Sender<Vec<u8>>,
    }

    impl Output for Gated {
        fn write(&mut self, lines: &[u8]) {
            let _ = self.permits.recv();
            let _ = self.batches.send(lines.to_vec());
        }
    }

    fn gated() -> (Sink, Sender<()>, Receiver<Vec<u8>>) {
        let (permit, permits) = channel();
        let (batches, batch) = channel();
        (Sink::start("test", Gated { permits, batches }), permit, batch)
    }

    #[test]
    fn a_stalled_output_blocks_no_caller_and_the_queue_is_bounded() {
        let (sink, permit, batch) = gated();
        sink.push(b"in the writer's hands\n");
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
        // It flows again.
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
