//! One process of `mcctl bench store --ranks`: reads steps from stdin and writes a reply to each to
//! stdout. If stdin ends before the objects are removed, because the command was killed, it removes
//! them.

use std::io::BufRead;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::commands::bench::store::rank_message::{RankReply, RankStep};
use crate::commands::bench::store::runner::BenchRunner;
use crate::commands::cli::error::Failure;
use crate::commands::cli::output;
use crate::commands::cli::runtime::Signals;
use crate::engine::bench::store::StopFlag;

/// Executes the steps that arrive on stdin. `keep`: the objects are not removed.
///
/// # Errors
/// stdout is closed before the first step.
pub(super) async fn serve(mut runner: BenchRunner, stop: StopFlag, keep: bool) -> Result<(), Failure> {
    // A terminal sends its signals to all processes. The command decides when the ranks stop.
    let mut signals = Signals::take()?;
    tokio::spawn(async move {
        loop {
            signals.next().await;
        }
    });
    let mut steps = steps(stop);
    output::json(&RankReply::Ready)?;
    let mut removed = true;
    while let Some(step) = steps.recv().await {
        let reply = match step {
            RankStep::Pass { kind, goal, duration } => {
                removed = false;
                match runner.pass(kind, goal, duration).await?.pop() {
                    Some(pass) => RankReply::Pass(Box::new(pass)),
                    None => continue,
                }
            }
            RankStep::RemoveRound => RankReply::Removed(runner.remove(false).await?),
            RankStep::RemoveAll => {
                removed = true;
                RankReply::Removed(runner.remove(true).await?)
            }
            RankStep::Stop => continue,
        };
        // Without the command, there is no reader.
        if output::json(&reply).is_err() {
            break;
        }
    }
    if !removed && !keep {
        // The result is no longer needed.
        let _ = runner.remove(true).await;
    }
    Ok(())
}

/// Reads steps from stdin. `Stop`, and the end of stdin, set `stop`.
fn steps(stop: StopFlag) -> UnboundedReceiver<RankStep> {
    let (sender, receiver) = unbounded_channel();
    let read = move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let Ok(step) = serde_json::from_str(&line) else { break };
            if step == RankStep::Stop {
                stop.set();
            } else if sender.send(step).is_err() {
                break;
            }
        }
        stop.set();
    };
    // Without the thread, the channel is closed and the rank ends.
    let _ = std::thread::Builder::new().name("steps".to_owned()).spawn(read);
    receiver
}
