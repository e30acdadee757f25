//! `mcctl master`: operates a running master.

use std::time::Duration;

use clap::Subcommand;

use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::commands::cli::output;
use crate::commands::cli::runtime;
use crate::commands::target::master_target::MasterArgs;
use crate::engine::admin::types::HaStatusReport;
use crate::engine::admin::{AdminClient, AdminError};
use crate::engine::base::HostPort;
use crate::engine::env::{Env, RealEnv, deadline};

/// Subcommands of `mcctl master`.
#[derive(Debug, Subcommand)]
pub enum MasterCommand {
    /// Make the leader of a cluster hand over to a standby, for example before its host is shut
    /// down
    StepDown(StepDownArgs),
}

/// Flags of `mcctl master step-down`.
#[derive(Debug, clap::Args)]
#[command(before_help = "master json help")]
#[command(
    before_long_help = "mcctl master step-down --master etcd://127.0.0.1:2379  # the leader that etcd names hands over\n\
    mcctl master step-down --master 10.0.0.1:50051 --json  # the same for the master at an address"
)]
#[command(after_help = "Exit codes: 0 a standby leads, 1 the master keeps leading, 3 it does not respond.\n\
    No key is lost and no call fails: the former leader forwards its connections to the new one, and becomes a standby.")]
pub struct StepDownArgs {
    #[command(flatten)]
    master: MasterArgs,
    /// Print a JSON document
    #[arg(long)]
    json: bool,
}

impl MasterCommand {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// The master does not respond.
    pub fn run(self) -> Outcome {
        let MasterCommand::StepDown(args) = self;
        runtime::block_on(0, runtime::reporting_signals(args.json, args.run()))
    }
}

/// How long the new leader may take to appear in the former leader's status.
const NEW_LEADER_MAX: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(20);

/// What to do if a master with this status did not step down.
fn remedy(status: &Result<Option<HaStatusReport>, AdminError>) -> &'static str {
    match status {
        Ok(None) => "nothing to do: the master is not part of a cluster (--enable-ha is off), so it has no standby",
        Ok(Some(status)) if !status.serving => {
            "pass the leader's admin address with --admin; mcctl status shows the leader"
        }
        _ => "mcctl status shows its standbys; a standby in sync is needed",
    }
}

impl StepDownArgs {
    async fn run(self) -> Outcome {
        let master = self.master.find().await?;
        let admin = master.admin_required().await?;
        let from = leader(&admin).await.unwrap_or_else(|| master.at.clone());
        let done = admin.step_down().await.map_err(|error| master.admin_failure(&error))?;
        if !done.success {
            let why = done.error_message.unwrap_or_default();
            return Err(Failure::no(format!("the master with the admin address {} did not step down", admin.at()))
                .found(why)
                .next(remedy(&admin.ha_status().await)));
        }
        let leader = new_leader(&admin, &from).await.map(|leader| leader.to_string());
        if self.json {
            let document =
                serde_json::json!({"schema": "mcctl/step-down/v1", "from": from.to_string(), "leader": leader});
            output::json(&document)?;
        } else {
            let leader = leader.as_deref().unwrap_or("not known yet");
            output::line(format!("{from} handed over; the leader is {leader}"))?;
        }
        Ok(Exit::Done)
    }
}

/// The leader's RPC address, as this master reports it; `None` if it does not know it.
async fn leader(admin: &AdminClient) -> Option<HostPort> {
    admin.ha_status().await.ok()??.leader?.parse().ok()
}

/// The leader after `from`, once the former leader reports it. Waits at most [`NEW_LEADER_MAX`].
async fn new_leader(admin: &AdminClient, from: &HostPort) -> Option<HostPort> {
    let env = RealEnv::new();
    let appears = async {
        loop {
            match leader(admin).await {
                Some(leader) if leader != *from => return leader,
                _ => env.sleep(POLL).await,
            }
        }
    };
    deadline(&env, NEW_LEADER_MAX, appears).await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_step_down_has_advice_for_the_masters_role() {
        let of = |serving| remedy(&Ok(Some(HaStatusReport { serving, ..HaStatusReport::default() })));
        assert!(of(true).contains("standby in sync") && of(false).contains("--admin"));
        assert!(remedy(&Ok(None)).contains("--enable-ha"));
    }
}
