//! `mcctl status --watch` for a cluster of masters: after a failover, it continues with the new
//! leader.

use std::time::Duration;

use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::commands::cli::output;
use crate::commands::status::Args;
use crate::commands::target::master_target::MasterTarget;
use crate::engine::env::{Env, RealEnv, deadline};

/// Pause before the leader is looked for again.
const FIND_PAUSE: Duration = Duration::from_secs(1);

impl Args {
    /// Reports on the leader of a cluster, whichever master leads, until a signal arrives.
    pub(super) async fn follow(&self, mut master: MasterTarget) -> Outcome {
        let env = RealEnv::new();
        let mut admin = master.admin_required().await?;
        // Errors of the first leader may be those of the flags.
        self.sample(&env, &master, &admin).await?;
        loop {
            let leader = master.leader.clone().expect("the master was found through etcd");
            tokio::select! {
                reported = self.report(&master, &admin) => match reported {
                    Err(failure) if failure.exit == Exit::Unreachable => {
                        output::say(failure.what);
                        let _ = deadline(&env, FIND_PAUSE, leader.changed(&master.at)).await;
                    }
                    other => return other,
                },
                () = leader.changed(&master.at) => {
                    output::say(format!("the master at {} no longer leads", master.at));
                }
            }
            let mut said = String::new();
            (master, admin) = loop {
                let found = async {
                    let master = self.master.find().await?;
                    let admin = master.admin_required().await?;
                    Ok::<_, Failure>((master, admin))
                };
                match found.await {
                    Ok(found) => break found,
                    Err(failure) if failure.exit == Exit::Unreachable => {
                        if failure.what != said {
                            output::say(&failure.what);
                            said = failure.what;
                        }
                    }
                    Err(failure) => return Err(failure),
                }
                env.sleep(FIND_PAUSE).await;
            };
        }
    }
}
