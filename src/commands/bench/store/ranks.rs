//! The processes of `mcctl bench store --ranks`: each is this program with the same flags, and runs
//! one step at a time at the same time as the others.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::commands::bench::store::rank_message::{RankReply, RankStep};
use crate::commands::cli::error::Failure;
use crate::commands::cli::runtime;

/// The pipes to all ranks. An ended rank has none.
type RankPipes = Arc<Mutex<Vec<Option<ChildStdin>>>>;

/// The running processes. Dropping it kills those that still run.
pub(super) struct RankProcesses {
    children: Vec<Child>,
    pipes: RankPipes,
    /// Rank and reply; `None` when its process has ended.
    replies: UnboundedReceiver<(usize, Option<RankReply>)>,
    /// Number of processes that have ended.
    ended: usize,
}

/// Ends the current pass of all ranks early.
#[derive(Clone)]
pub(super) struct RankStopper(RankPipes);

impl RankStopper {
    /// Sends the request. Ranks that have ended are skipped.
    pub(super) fn stop(&self) {
        send(&self.0, &RankStep::Stop);
    }
}

impl RankProcesses {
    /// Starts `ranks` processes whose keys begin with `prefix`, and waits until all are connected.
    ///
    /// # Errors
    /// A process cannot be started, or a rank cannot connect.
    pub(super) async fn start(ranks: u32, prefix: &str) -> Result<RankProcesses, Failure> {
        let cannot = |error: std::io::Error| Failure::host("cannot start the ranks").found(error.to_string());
        let program = std::env::current_exe().map_err(cannot)?;
        let (sender, replies) = unbounded_channel();
        let mut processes = RankProcesses { children: Vec::new(), pipes: RankPipes::default(), replies, ended: 0 };
        for rank in 0..ranks as usize {
            let mut child = Command::new(&program)
                .args(std::env::args_os().skip(1))
                .args([format!("--rank-index={rank}"), format!("--rank-prefix={prefix}")])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .map_err(cannot)?;
            let stdin = child.stdin.take();
            let stdout = child.stdout.take();
            processes.children.push(child);
            processes.pipes.lock().unwrap_or_else(PoisonError::into_inner).push(stdin);
            let sender = sender.clone();
            let read = move || {
                let lines = stdout.into_iter().flat_map(|stdout| BufReader::new(stdout).lines());
                for line in lines.map_while(Result::ok) {
                    // A line that is not a reply ends the rank: this program writes nothing else.
                    let Ok(reply) = serde_json::from_str(&line) else { break };
                    if sender.send((rank, Some(reply))).is_err() {
                        return;
                    }
                }
                // The receiver is gone if the command has ended.
                let _ = sender.send((rank, None));
            };
            std::thread::Builder::new().name(format!("rank-{rank}")).spawn(read).map_err(cannot)?;
        }
        processes.replies().await?;
        Ok(processes)
    }

    /// Returns a handle that ends passes early.
    pub(super) fn stopper(&self) -> RankStopper {
        RankStopper(Arc::clone(&self.pipes))
    }

    /// Executes `step` on all ranks at the same time. Returns their replies, by rank.
    ///
    /// # Errors
    /// A rank failed or ended.
    pub(super) async fn execute(&mut self, step: &RankStep) -> Result<Vec<RankReply>, Failure> {
        send(&self.pipes, step);
        self.replies().await
    }

    /// Waits for one reply of each rank.
    async fn replies(&mut self) -> Result<Vec<RankReply>, Failure> {
        let mut replies: Vec<Option<RankReply>> = self.children.iter().map(|_| None).collect();
        while replies.iter().any(Option::is_none) {
            match self.replies.recv().await {
                Some((rank, Some(RankReply::Failed(failure)))) => return Err(failure.of(rank)),
                Some((rank, Some(reply))) => {
                    if let Some(slot) = replies.get_mut(rank) {
                        *slot = Some(reply);
                    }
                }
                Some((rank, None)) => {
                    self.ended += 1;
                    return Err(self.lost(rank));
                }
                None => return Err(Failure::host("the ranks have ended")),
            }
        }
        Ok(replies.into_iter().flatten().collect())
    }

    /// The failure of a rank whose process ended without a message.
    fn lost(&mut self, rank: usize) -> Failure {
        let failure = Failure::host(format!("rank {rank}: the process has ended"));
        match self.children.get_mut(rank).and_then(|child| child.wait().ok()) {
            Some(status) => failure.found(status.to_string()),
            None => failure,
        }
    }

    /// Lets all ranks end, and waits for them. A rank whose objects were not removed removes them
    /// first.
    pub(super) async fn finish(mut self) {
        self.pipes.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let number = self.children.len();
        let ended = async {
            while self.ended < number {
                match self.replies.recv().await {
                    Some((_, None)) => self.ended += 1,
                    Some(_) => {}
                    None => break,
                }
            }
        };
        runtime::stop_in_time("a rank", ended).await;
    }
}

impl Drop for RankProcesses {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Fails if the process has already been waited for.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Writes `step` to all ranks. One that has ended is noticed when it does not reply.
fn send(pipes: &RankPipes, step: &RankStep) {
    let line = serde_json::to_string(step).expect("steps are plain data") + "\n";
    let mut pipes = pipes.lock().unwrap_or_else(PoisonError::into_inner);
    for pipe in pipes.iter_mut().flatten() {
        let _ = pipe.write_all(line.as_bytes()).and_then(|()| pipe.flush());
    }
}
