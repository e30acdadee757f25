//! `mcctl master`: operates a running master.

use std::time::Duration;

use clap::Subcommand;

use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::master_target::MasterArgs;
use crate::commands::output;
use crate::commands::runtime;
use crate::engine::base::HostPort;
use crate::engine::env::{Env, RealEnv};

/// Subcommands of `mcctl master`.
#[derive(Debug, Subcommand)]
pub enum MasterCommand {
    /// Make the leader of a cluster hand over to a standby, for example before its host is shut down
    StepDown(StepDownArgs),
}

/// Flags of `mcctl master step-down`.
#[derive(Debug, clap::Args)]
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
        runtime::block_on(0, args.run())
    }
}

/// How long the new leader may take to appear in the former leader's status.
const NEW_LEADER_MAX: Duration = Duration::from_secs(2);

impl StepDownArgs {
    async fn run(self) -> Outcome {
        let master = self.master.find().await?;
        let admin = master.admin_required().await?;
        let done = admin.step_down().await.map_err(|error| master.admin_failure(&error))?;
        if !done.success {
            let why = done.error_message.unwrap_or_default();
            return Err(Failure::no(format!("the master at {} did not step down", master.at))
                .found(why)
                .next("mcctl status shows its standbys; a standby in sync is needed"));
        }
        let env = RealEnv::new();
        let mut leader = None;
        let mut waited = Duration::ZERO;
        while leader.is_none() && waited < NEW_LEADER_MAX {
            let status = admin.ha_status().await.ok().flatten();
            leader = status.filter(|status| !status.serving).and_then(|status| status.leader);
            leader = leader.filter(|leader| leader.parse::<HostPort>().is_ok_and(|leader| leader != master.at));
            env.sleep(Duration::from_millis(20)).await;
            waited += Duration::from_millis(20);
        }
        if self.json {
            let document =
                serde_json::json!({"schema": "mcctl/step-down/v1", "from": master.at.to_string(), "leader": leader});
            output::json(&document)?;
        } else {
            let leader = leader.as_deref().unwrap_or("not known yet");
            output::line(format!("{} handed over; the leader is {leader}", master.at))?;
        }
        Ok(Exit::Done)
    }
}
