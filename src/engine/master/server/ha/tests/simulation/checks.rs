//! The checks at each event, after a fault, and at the end of a run.

use super::client::Client;
use super::memory::segment_of;
use super::node::Node;
use super::report::Violation;
use super::world::{RECOVERY, World};
use mcctl_election::ha::{AckMode, HandOverProblem, NotInSyncPolicy, SyncRecord};
use mcctl_sys::env::Env;

/// A standby completes a snapshot at most this long after its leader has ended.
const SNAPSHOT_END_MAX: u64 = 3_000_000;
/// An operator deletes the sync record after this time without a copy that may be elected.
const OPERATOR_PAUSE: u64 = 15_000_000;
/// Maximum age of the last successful put when the service is checked.
const RESUMED: u64 = 10_000_000;

impl World {
    /// Ends the run at a broken rule. Outside the assumptions, it continues, unless memory was
    /// allocated twice.
    pub(super) fn judge(&mut self, result: Result<(), Violation>) -> Result<(), Violation> {
        match result {
            Err(violation) if self.plan.is_outside && !matches!(violation, Violation::AllocatedTwice { .. }) => {
                *self.totals.broken.entry(violation.kind()).or_default() += 1;
                Ok(())
            }
            result => result,
        }
    }

    /// The state of the nodes, of etcd and of the clients, for the report of a violation.
    pub(super) fn state_summary(&self) -> Vec<String> {
        let node = |node: &Node| {
            let view = node.process.as_ref().map(|process| process.hub.view(process.shared.env.boottime()));
            format!("{:?} {view:?}", node.probe())
        };
        let client = |client: &Client| {
            let operation = client.sent.as_ref().map(|sent| &sent.operation);
            format!("{:?} {operation:?} {}", client.target, client.must_register)
        };
        let mut roles: Vec<String> = self.nodes.iter().map(node).collect();
        roles.push(format!("{:?}", self.etcd.observation()));
        roles.extend(self.clients.iter().map(client));
        roles
    }

    pub(super) fn check_end(&mut self) -> Result<(), Violation> {
        if self.last_put + RECOVERY / 2 < self.now {
            return Err(Violation::NoService { roles: self.state_summary() });
        }
        let elected = self.etcd.elected.last().map(|election| election.leader);
        let leads = |node: &&Node| node.is_up() && Some(node.probe().0) == elected && node.is_leader();
        let Some(leader) = self.nodes.iter().find(leads).and_then(|node| node.process.as_ref()) else {
            return Err(Violation::NoService { roles: self.state_summary() });
        };
        let find = |key: &str| {
            let replicas = leader.shared.with_guarded(|guarded, _, _| guarded.state.peek(key.as_bytes())).ok()?;
            Some(replicas.iter().map(|replica| replica.address).collect())
        };
        self.model.check_end(&self.memory, find, |at| self.ended_segments.contains(&segment_of(at)))
    }

    /// A copy was elected that may have lacked changes. It has dropped its objects, unless it is
    /// proven that their memory belongs to them.
    pub(super) fn note_lossy_promotion(&mut self, nth: usize) {
        self.trace(|| format!("node {nth} is elected with a copy that may lack changes"));
        self.totals.lossy_promotions += 1;
        let process = self.nodes[nth].process.as_ref();
        let has_objects = process.is_some_and(|it| it.hub.view(it.shared.env.boottime()).objects > 0);
        self.totals.kept_promotions += u64::from(has_objects);
        if self.plan.not_in_sync == NotInSyncPolicy::Wait && !self.plan.is_async && !self.is_copy_lost {
            self.violation = Some(Violation::LossyPromotion { node: nth });
        }
        self.model.lose_all();
        self.records.lose_all();
    }

    /// With `wait`, no copy that may be elected may be left: the last one has ended, was not listed
    /// yet, or was to be promoted without its objects (`async`). An operator then deletes the sync
    /// record, as in high-availability.md.
    pub(super) fn recover_as_operator(&mut self) {
        let is_lost = || {
            let is_any_listed = |sync: &SyncRecord| self.nodes.iter().any(|node| sync.includes(node.member()));
            self.etcd.leader().is_none() && self.etcd.sync().is_some_and(|sync| !is_any_listed(sync))
        };
        let may_be_lost = self.plan.is_async || self.is_copy_lost;
        if !may_be_lost || self.plan.not_in_sync != NotInSyncPolicy::Wait || !is_lost() {
            self.operator_waits_since = None;
            return;
        }
        let since = *self.operator_waits_since.get_or_insert(self.now);
        if since + OPERATOR_PAUSE < self.now {
            self.totals.operator_recoveries += 1;
            // Without a record, an empty copy is elected as complete.
            self.model.lose_all();
            self.records.lose_all();
            self.etcd.delete_sync();
            self.notify_watches();
        }
    }

    /// Checks that a complete copy is discarded only if there is another one.
    pub(super) fn check_discard(&mut self, nth: usize) {
        let copy = self.nodes[nth].copy();
        let before = std::mem::replace(&mut self.nodes[nth].last_copy, copy);
        let Some(sync) = self.etcd.sync().filter(|_| before != copy && self.sync_writes == 0) else { return };
        // Each record states its mode, so this default is not used.
        let is_complete = |id| sync.is_complete(id, AckMode::Sync);
        if !is_complete(before) || self.nodes.iter().any(|node| is_complete(node.copy())) {
            return;
        }
        // A copy that was discarded is empty.
        let process = self.nodes[nth].process.as_ref();
        let is_replaced = process.is_some_and(|it| it.hub.view(it.shared.env.boottime()).last > 0);
        if is_replaced && self.crashed_at + SNAPSHOT_END_MAX > self.now {
            // The snapshot was complete when its leader had ended, or ended before it could list
            // the new copy.
            self.totals.unlisted_copies += 1;
            self.is_copy_lost = true;
        } else {
            self.violation = Some(Violation::LastCopyDiscarded { node: nth, id: before });
        }
    }

    /// Checks that at most one master can send responses.
    pub(super) fn check_leaders(&mut self) {
        let mut answering = (0..self.nodes.len()).filter(|nth| self.nodes[*nth].could_answer());
        if let (Some(one), Some(two)) = (answering.next(), answering.next()) {
            self.violation = Some(Violation::TwoLeaders(one, two));
        }
    }

    /// Handles the end of a hand-over. If the process has received a request to end, it ends.
    pub(super) fn end_hand_over(
        &mut self,
        node: usize,
        is_ending: bool,
        result: Result<(), HandOverProblem>,
    ) -> Result<(), Violation> {
        self.trace(|| format!("node {node}: end of a hand-over: {result:?}"));
        let has_begun = !matches!(result, Err(HandOverProblem::NoStandby | HandOverProblem::NotLeading));
        // A process exits also if the hand-over was not completed, even with the last copy.
        self.is_copy_lost |= is_ending && has_begun && result.is_err() && !self.may_crash(node);
        match result {
            Ok(()) => self.totals.effective += 1,
            Err(problem) if self.is_last_hand_over => {
                return Err(Violation::HandOverFailed { problem, roles: self.state_summary() });
            }
            Err(problem) => *self.totals.failed_hand_overs.entry(format!("{problem:?}")).or_default() += 1,
        }
        if is_ending {
            self.end_process(node, has_begun);
        }
        Ok(())
    }

    /// Checks, some time after the last fault, that there is a leader, all standbys are in sync,
    /// and puts succeed. Returns the leader.
    pub(super) fn check_service(&self) -> Result<usize, Violation> {
        let listed = self.etcd.sync().map_or(0, |sync| sync.in_sync.len());
        let Some(leader) = self.leader().filter(|_| listed + 1 == self.nodes.len()) else {
            return Err(Violation::NotInSync { roles: self.state_summary() });
        };
        if self.last_put + RESUMED < self.now {
            return Err(Violation::NoService { roles: self.state_summary() });
        }
        Ok(leader)
    }

    /// Checks that service has resumed, and requests a hand-over, which must succeed.
    pub(super) fn request_last_hand_over(&mut self) -> Result<(), Violation> {
        let leader = self.check_service()?;
        self.is_last_hand_over = true;
        if let Some(process) = &self.nodes[leader].process {
            process.step_down(false);
        }
        self.run_node(leader);
        Ok(())
    }

    /// Checks that no master that was elected later has answered before.
    pub(super) fn check_answer(&mut self, node: usize, view: u64) {
        let election = self.etcd.elected.iter().rposition(|election| election.view == view).unwrap_or(0);
        if election < self.answered {
            self.violation = Some(Violation::StaleAnswer { node });
        }
        self.answered = self.answered.max(election);
    }
}
