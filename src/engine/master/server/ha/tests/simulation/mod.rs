//! A cluster of masters on simulated hosts: etcd, the network, the disks and all clocks are simulated. The code of the masters is that of
//! `serve master`: the core, the driver, the gate, the tail, the streams with their handshakes, the copies, the data directories, the ticker
//! and the state.
//!
//! Not in the simulation: the RPC server, with its sockets and worker threads (a call passes the same admission, processing and commit
//! without them); the requests of `EtcdElection` over HTTP; the threads for the log and for snapshots, whose steps run one at a time here;
//! the start and the end of `MasterServer`.
//!
//! Clients put, read and remove keys. Nodes crash, pause, hand over, end and are cut off from each other and from etcd, and etcd
//! crashes. A seed chooses the mode of acknowledgement, the policy for copies that are not in sync, data directories, and how long it
//! takes to make a copy ready. Checked:
//!
//! * an acknowledged put is readable at the end, with its bytes, unless a copy that may lack changes was promoted since;
//! * no read within its lease returns another key's bytes, also after such a promotion;
//! * such a promotion does not happen with `wait` and `sync`;
//! * two masters can never answer at the same moment, and none answers after one that was elected later has answered;
//! * after some time without faults, all standbys are in sync, a hand-over succeeds, and puts succeed.

mod client;
mod election;
mod env;
pub(super) mod etcd;
mod event;
mod fabric;
mod fault;
mod mistakes;
mod net;
mod network;
mod node;
mod process;
mod report;
mod request;
mod world;

use report::{Plan, Totals, Violation};
use world::{FAULTS_MIN, OPERATIONS_MIN, World};

/// Runs one seed.
fn run(seed: u64) -> Result<World, Violation> {
    run_plan(seed, Plan::of(seed))
}

fn run_plan(seed: u64, plan: Plan) -> Result<World, Violation> {
    let mut world = World::new(seed, plan);
    world.run()?;
    Ok(world)
}

/// A number from the environment, or `default`.
fn number_from(variable: &str, default: u64) -> u64 {
    std::env::var(variable)
        .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{variable}: not a number: {text}")))
}

#[test]
fn a_run_can_be_repeated() {
    for seed in 1..=4 {
        let trail = || run(seed).map(|world| world.trail);
        assert_eq!(trail().unwrap(), trail().unwrap(), "seed {seed}");
    }
}

#[test]
fn no_acknowledged_put_is_lost_by_a_failover() {
    let mut totals = Totals::default();
    let first = number_from("MCCTL_HA_FIRST_SEED", 1);
    for seed in first..first + number_from("MCCTL_HA_SEEDS", 60) {
        match run(seed) {
            Ok(world) => {
                let operations = world.totals.operations();
                assert!(
                    operations >= OPERATIONS_MIN && world.totals.effective >= FAULTS_MIN,
                    "seed {seed}: {:?}",
                    world.totals
                );
                totals.add(&world.totals);
            }
            Err(violation) => panic!("seed {seed}: {violation}"),
        }
    }
    // Fewer seeds do not reach all stages.
    if totals.runs >= 1000 {
        assert_eq!(totals.stages_without_a_crash(), []);
    }
    println!("{}", totals.stage_table());
    totals.stages.clear();
    println!("{totals:#?}");
    // A single run may have no data directories.
    if totals.runs > 10 {
        assert!(totals.elections > 0 && totals.puts > 0 && totals.reads > 0 && totals.reopened > 0, "{totals:?}");
    }
}
