//! A sweep with the engine's types only, as a user of the library runs it.

use mcctl::engine::base::HostPort;
use mcctl::engine::env::RealEnv;
use mcctl::engine::load::answer::Dialect;
use mcctl::engine::load::goals::GoalTracker;
use mcctl::engine::load::plan::{Measurement, MeasurementKind};
use mcctl::engine::load::session::LoadEndpoint;
use mcctl::engine::load::sweep::{Sweep, SweepResult, SweepTerms};
use mcctl::engine::load::target::LoadTarget;
use mcctl::engine::load::workload::Synthetic;
use mcctl::engine::load::{Distribution, Seed};
use tokio::sync::mpsc;

use super::server::{Behaviour, serve};
use super::{free_port, ms};

/// Offers two rates to the server at `at` and returns the figures for each.
async fn sweep(at: HostPort) -> Result<SweepResult, Box<dyn std::error::Error>> {
    let number = |value: u32| Distribution::Constant(f64::from(value));
    let side = |seed| {
        let workload = Synthetic::new(3, number(2), number(20), number(4), Seed(seed));
        LoadEndpoint::new("A", LoadTarget::new(at.clone(), Dialect::Generate), Box::new(workload))
    };
    let rates = Sweep::Rate(vec![50.0, 100.0]);
    let measurement = Measurement::new(MeasurementKind::Sweep(rates.clone()), vec![side(1), side(2)]);
    let env = RealEnv::new();
    measurement.check_reachable(&env).await?;
    let session = measurement.plan(&env).await?.session;
    let mut goals = GoalTracker::new(&["ttft:60000".parse()?]);
    let (_stop, mut stopped) = mpsc::channel(1);
    let executed = session.execute(env, &mut stopped, &mut goals).await;
    let terms = SweepTerms { share_to_pass: Some(0.9), steady_ratio: 0.8 };
    Ok(SweepResult::of(&rates, &executed.passes, &goals.passes, terms, executed.stopped))
}

#[tokio::test]
async fn sweep_runs_without_the_command_line() {
    let port = serve(|_| Behaviour::Answer(4, ms(1), ms(0))).await;
    let result = sweep(HostPort::new("127.0.0.1", port)).await.expect("a reachable server");
    let figures: Vec<_> = result.points.iter().map(|point| (point.load, point.failed, point.goodput_share)).collect();
    assert_eq!(figures, [(50.0, 0, Some(1.0)), (100.0, 0, Some(1.0))]);
    assert_eq!((result.of, result.highest_that_meets), ("rate", Some(100.0)));
    let refused = sweep(HostPort::new("127.0.0.1", free_port())).await.expect_err("no server");
    assert!(refused.to_string().contains("(endpoint A)"), "{refused}");
}
