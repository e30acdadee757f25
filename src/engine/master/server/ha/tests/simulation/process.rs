//! A process of a simulated master: the driver, the gate, the tail, the data directory and the
//! ticker are those of `serve master`. Its tasks run on a runtime of its own, on the simulation's
//! only thread.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::election::SimElection;
use super::env::SimEnv;
use super::event::Event;
use super::net::RPC_PORT;
use super::operation::Request;
use super::records::{self, RecordRead};
use super::request::{ServeOutcome, serve};
use crate::server::MasterHandle;
use crate::server::ha::disk::{FoundCopy, HaDisk};
use crate::server::ha::driver::HaDriver;
use crate::server::ha::leader::tail::TailLimits;
use crate::server::ha::{HaHub, HaSecret, HaSettings};
use crate::server::shared::MasterShared;
use crate::server::ticker::run_ticker;
use crate::state::MasterState;
use crate::{DATA_FORMAT, StorePolicy};
use mcctl_base::HostPort;
use mcctl_election::ha::HaConfig;
use mcctl_net::rpc::{ClientReleases, RpcLatency, WorkerPolls};
use mcctl_wire::Release;

/// The settings of a master.
#[derive(Clone)]
pub(super) struct NodeSettings {
    pub policy: StorePolicy,
    pub config: HaConfig,
    pub tail: TailLimits,
}

/// A running process of a master, with its tasks and the calls of its clients.
pub(super) struct Process {
    pub shared: Arc<MasterShared<SimEnv>>,
    pub hub: Arc<HaHub>,
    runtime: Runtime,
    idle: Arc<Idle>,
    calls: Arc<Calls>,
    /// The driver and the ticker, which run as long as the process.
    main: Vec<JoinHandle<()>>,
    _stop: watch::Sender<bool>,
}

/// Whether no task of a process can continue.
#[derive(Default)]
struct Idle {
    is_idle: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

/// The calls of clients in progress. One task polls them, in the order of their arrival, so that a
/// run can be repeated: tokio wakes the tasks that wait for the same change in a random order.
#[derive(Default)]
struct Calls {
    arrived: Mutex<Vec<Call>>,
    waker: Mutex<Option<Waker>>,
}

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Calls {
    /// Polls the calls, forever.
    async fn run(self: Arc<Calls>) {
        let mut calls: Vec<Call> = Vec::new();
        std::future::poll_fn(|context| {
            *self.waker.lock().expect("one thread") = Some(context.waker().clone());
            calls.append(&mut self.arrived.lock().expect("one thread"));
            calls.retain_mut(|call| call.as_mut().poll(context).is_pending());
            Poll::Pending
        })
        .await
    }

    /// Adds a call, which the task polls after the earlier ones.
    fn add(&self, call: impl Future<Output = ()> + Send + 'static) {
        self.arrived.lock().expect("one thread").push(Box::pin(call));
        let waker = self.waker.lock().expect("one thread").take();
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Idle {
    /// The runtime has no task to run.
    fn set(&self) {
        let waker = self.waker.lock().expect("one thread").take();
        if let Some(waker) = waker {
            self.is_idle.store(true, Ordering::Relaxed);
            waker.wake();
        }
    }
}

impl Process {
    /// Starts a process on the host `node`, with the copy in its data directory if it has one.
    pub(super) fn start(env: &SimEnv, settings: NodeSettings, data: Option<(HaDisk, FoundCopy)>) -> Process {
        let NodeSettings { policy, config, tail } = settings;
        let idle = Arc::new(Idle::default());
        let parked = idle.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().on_thread_park(move || parked.set()).build();
        let runtime = runtime.expect("a runtime needs no system resources without its drivers");
        let host = format!("node-{}", env.node);
        let settings = HaSettings {
            metadata: None,
            config,
            cluster: "c".to_owned(),
            host: host.clone(),
            listen: HostPort::new(host, 0),
            secret: HaSecret::none(),
            format: DATA_FORMAT,
        };
        let (disk, found) = data.unzip();
        let (hub, commands) = HaHub::new(disk);
        hub.tail.set_limits(tail);
        let hub = Arc::new(hub);
        let state = MasterState::new(policy.clone());
        let shared = Arc::new(MasterShared::new(state, None, Some(hub.clone()), env.clone()));
        let backend = SimElection { fabric: env.fabric.clone(), node: env.node };
        let driver = HaDriver::new(shared.clone(), hub.clone(), backend, settings, RPC_PORT, found, policy);
        let (stop, stopping) = watch::channel(false);
        let listener = mcctl_sys::env::Env::net(env).listener();
        let ticker = MasterHandle {
            shared: shared.clone(),
            polls: WorkerPolls::none(),
            latency: RpcLatency::none(),
            releases: ClientReleases::new(Release::LATEST),
        };
        let main = vec![
            runtime.spawn(driver.run(listener, commands, stopping.clone())),
            runtime.spawn(run_ticker(ticker, stopping)),
        ];
        let calls = Arc::new(Calls::default());
        runtime.spawn(calls.clone().run());
        Process { shared, hub, runtime, idle, calls, main, _stop: stop }
    }

    /// Runs the tasks until none of them can continue.
    pub(super) fn run(&self) {
        self.idle.is_idle.store(false, Ordering::Relaxed);
        self.runtime.block_on(std::future::poll_fn(|context| {
            if self.idle.is_idle.load(Ordering::Relaxed) {
                return Poll::Ready(());
            }
            *self.idle.waker.lock().expect("one thread") = Some(context.waker().clone());
            Poll::Pending
        }));
        assert!(!self.main.iter().any(JoinHandle::is_finished), "the driver or the ticker has ended");
    }

    /// A client's call arrives.
    pub(super) fn receive(&self, client: usize, call: u64, request: Request) {
        let shared = self.shared.clone();
        self.calls.add(async move {
            let env = shared.env.clone();
            let node = env.node;
            let event = match serve(&shared, &request).await {
                ServeOutcome::Answered { reply, view } => Event::Answered { node, client, call, reply, view },
                ServeOutcome::Forwarded(address) => Event::Forwarded { client, call, address, request },
                ServeOutcome::Closed { was_processed } => Event::Closed { client, call, was_processed },
            };
            env.fabric.post(0, event);
        });
    }

    /// A write of the record arrives.
    pub(super) fn write_record(&self, value: u64) {
        let shared = self.shared.clone();
        self.calls.add(async move {
            let result = records::write(&shared, value).await;
            shared.env.fabric.post(0, Event::RecordWritten { value, result });
        });
    }

    /// A read of the record arrives.
    pub(super) fn read_record(&self, read: RecordRead) {
        let shared = self.shared.clone();
        self.calls.add(async move {
            if let Ok(found) = records::read(&shared).await {
                shared.env.fabric.post(0, Event::RecordRead { read, found });
            }
        });
    }

    /// Requests a hand-over, as an operator does.
    pub(super) fn step_down(&self, is_ending: bool) {
        let hub = self.hub.clone();
        let env = self.shared.env.clone();
        self.runtime.spawn(async move {
            let result = hub.step_down(is_ending).await;
            env.fabric.post(0, Event::SteppedDown { node: env.node, is_ending, result });
        });
    }

    /// Begins the end of the process.
    pub(super) fn leave(&self) {
        let hub = self.hub.clone();
        self.runtime.spawn(async move {
            hub.leave().await;
        });
    }
}
