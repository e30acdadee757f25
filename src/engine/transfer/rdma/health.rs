//! Health of devices and paths: which ones to avoid for a while, and for how long.
//!
//! A local fault (such as an invalid key or length) counts against the device. After [`FAULTS_MAX`]
//! such faults in a row, the device is disabled. Any other fault counts against the path to the
//! peer, which is paused. If no other path exists, a paused path is used anyway (see
//! [`Router::route`](crate::rdma::route::RdmaRouter::route)).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use mcctl_base::Mono;

/// Number of consecutive faults after which a device is disabled (same value as upstream).
const FAULTS_MAX: u32 = 32;
/// Number of errors within [`ERRORS_WITHIN`] after which a path is paused even if it is the only
/// one (same values as upstream).
const ERRORS_MAX: usize = 5;
/// The time window for [`ERRORS_MAX`].
const ERRORS_WITHIN: Duration = Duration::from_secs(5);
/// How long a device stays disabled.
const OFF_FOR: Duration = Duration::from_secs(30);
/// Maximum number of tracked paths. Beyond this, the path with the oldest error is dropped.
const WAYS_MAX: usize = 4096;

/// Health of an engine's devices and paths.
#[derive(Clone, Debug)]
pub struct RailHealth {
    devices: Vec<DeviceHealth>,
    /// Keyed by our device's index and the peer's path.
    paths: BTreeMap<(usize, String), PathHealth>,
    rail_pause: Duration,
    dial_pause: Duration,
}

#[derive(Clone, Debug, Default)]
struct DeviceHealth {
    faults: u32,
    pause: Option<DevicePause>,
}

/// Why a device is disabled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePause {
    pub why: String,
    /// End of the pause.
    pub until: Mono,
}

#[derive(Clone, Debug, Default)]
struct PathHealth {
    errors: VecDeque<Mono>,
    paused: Option<Mono>,
    no_dial: Option<Mono>,
}

impl PathHealth {
    fn is_over(&self, now: Mono) -> bool {
        let over = |until: Option<Mono>| until.is_none_or(|until| now >= until);
        over(self.paused) && over(self.no_dial) && self.errors.back().is_none_or(|at| now.since(*at) >= ERRORS_WITHIN)
    }
}

impl RailHealth {
    /// Starts with `devices` enabled devices. The pauses come from `MC_RDMA_RAIL_PAUSE_SECONDS` and
    /// `MC_CONN_PAUSE_TTL_MS`.
    pub fn new(devices: usize, rail_pause: Duration, dial_pause: Duration) -> RailHealth {
        RailHealth { devices: vec![DeviceHealth::default(); devices], paths: BTreeMap::new(), rail_pause, dial_pause }
    }

    /// Whether no fault is recorded. If so, callers can skip all further checks.
    pub fn is_clear(&self) -> bool {
        self.paths.is_empty() && self.devices.iter().all(|device| device.pause.is_none() && device.faults == 0)
    }

    /// Returns why device `local` is disabled at `now`, or `None` if it is enabled.
    pub fn pause(&self, local: usize, now: Mono) -> Option<&DevicePause> {
        let pause = self.devices.get(local)?.pause.as_ref()?;
        (now < pause.until).then_some(pause)
    }

    /// Whether the path may be used at `now`.
    pub fn is_open(&self, local: usize, peer: &str, now: Mono) -> bool {
        self.path(local, peer).is_none_or(|path| path.paused.is_none_or(|until| now >= until))
    }

    /// Checks whether the peer may be dialed at `now`.
    ///
    /// # Errors
    /// Fails with the time at which the peer may be dialed again.
    pub fn may_dial(&self, local: usize, peer: &str, now: Mono) -> Result<(), Mono> {
        match self.path(local, peer).and_then(|path| path.no_dial) {
            Some(until) if now < until => Err(until),
            _ => Ok(()),
        }
    }

    fn path(&self, local: usize, peer: &str) -> Option<&PathHealth> {
        // Avoids building the key if the map is empty.
        if self.paths.is_empty() { None } else { self.paths.get(&(local, peer.to_owned())) }
    }

    /// Records a success on the device.
    pub fn succeeded(&mut self, local: usize) {
        if let Some(device) = self.devices.get_mut(local) {
            device.faults = 0;
        }
    }

    /// Records a local fault. Returns whether it disables the device.
    pub fn device_failed(&mut self, local: usize, why: &str, now: Mono) -> bool {
        let Some(device) = self.devices.get_mut(local) else { return false };
        device.faults += 1;
        if device.faults < FAULTS_MAX {
            return false;
        }
        device.faults = 0;
        let why = format!("{FAULTS_MAX} consecutive faults; the last one was: {why}");
        device.pause = Some(DevicePause { why, until: now + OFF_FOR });
        true
    }

    /// Records an error on the path to `peer`. `another` is set if another path exists. Returns
    /// whether the path was newly paused.
    pub fn path_failed(&mut self, local: usize, peer: &str, another: bool, now: Mono) -> bool {
        let pause = self.rail_pause;
        let path = self.entry_mut(local, peer, now);
        path.errors.push_back(now);
        while path.errors.len() > ERRORS_MAX || path.errors.front().is_some_and(|at| now.since(*at) > ERRORS_WITHIN) {
            path.errors.pop_front();
        }
        let was = path.paused.is_some_and(|until| now < until);
        if (another || path.errors.len() >= ERRORS_MAX) && pause > Duration::ZERO {
            path.paused = Some(now + pause);
        }
        !was && path.paused.is_some_and(|until| now < until)
    }

    /// Records that connecting to the peer over this path failed.
    pub fn dial_failed(&mut self, local: usize, peer: &str, now: Mono) {
        if self.dial_pause > Duration::ZERO {
            let until = now + self.dial_pause;
            self.entry_mut(local, peer, now).no_dial = Some(until);
        }
    }

    /// Records a new connection over this path, which clears the path's errors.
    pub fn connected(&mut self, local: usize, peer: &str) {
        if !self.paths.is_empty() {
            self.paths.remove(&(local, peer.to_owned()));
        }
    }

    /// Drops entries whose pause has ended at `now`.
    pub fn sweep(&mut self, now: Mono) {
        self.paths.retain(|_, path| !path.is_over(now));
        for device in &mut self.devices {
            device.pause.take_if(|pause| now >= pause.until);
        }
    }

    fn entry_mut(&mut self, local: usize, peer: &str, now: Mono) -> &mut PathHealth {
        let key = (local, peer.to_owned());
        if self.paths.len() >= WAYS_MAX && !self.paths.contains_key(&key) {
            self.sweep(now);
            let oldest = self.paths.iter().min_by_key(|(_, path)| path.errors.back().copied().or(path.no_dial));
            if self.paths.len() >= WAYS_MAX
                && let Some(oldest) = oldest.map(|(key, _)| key.clone())
            {
                self.paths.remove(&oldest);
            }
        }
        self.paths.entry(key).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: &str = "b:1@rxe0";

    fn health() -> RailHealth {
        RailHealth::new(2, Duration::from_secs(30), Duration::from_millis(500))
    }

    fn at(ms: u64) -> Mono {
        Mono::from_ms(ms)
    }

    #[test]
    fn a_failed_path_is_paused_if_another_exists() {
        let mut health = health();
        assert!(health.is_clear() && health.is_open(0, PEER, at(0)));
        assert!(health.path_failed(0, PEER, true, at(0)));
        assert!(!health.path_failed(0, PEER, true, at(1)), "it is already paused");
        assert!(!health.is_open(0, PEER, at(30_000)), "counted from the last error");
        assert!(health.is_open(1, PEER, at(0)) && health.is_open(0, "c:1@rxe0", at(0)));
        assert!(health.is_open(0, PEER, at(30_001)));
        health.sweep(at(30_001));
        assert!(health.is_clear());
    }

    #[test]
    fn the_only_path_is_paused_after_five_errors_in_five_seconds() {
        let mut health = health();
        for ms in [0, 1000, 2000, 3000] {
            assert!(!health.path_failed(0, PEER, false, at(ms)));
        }
        assert!(!health.path_failed(0, PEER, false, at(5500)), "the first error is outside the window");
        assert!(health.is_open(0, PEER, at(5500)));
        assert!(health.path_failed(0, PEER, false, at(5600)));
        assert!(!health.is_open(0, PEER, at(5600)));
        health.connected(0, PEER);
        assert!(health.is_open(0, PEER, at(5600)) && health.is_clear());
    }

    #[test]
    fn thirty_two_consecutive_faults_disable_a_device() {
        let mut health = health();
        for _ in 0..31 {
            assert!(!health.device_failed(1, "local protection error", at(0)));
        }
        health.succeeded(1);
        assert!(!health.device_failed(1, "local protection error", at(0)));
        for _ in 0..30 {
            assert!(!health.device_failed(1, "local protection error", at(0)));
        }
        assert!(health.device_failed(1, "local protection error", at(0)));
        assert!(health.pause(1, at(0)).unwrap().why.ends_with("local protection error"));
        assert!(health.pause(0, at(0)).is_none() && health.pause(9, at(0)).is_none());
        assert!(health.pause(1, at(29_999)).is_some() && health.pause(1, at(30_000)).is_none());
    }

    #[test]
    fn a_failed_dial_pauses_dialling() {
        let mut health = health();
        health.dial_failed(0, PEER, at(0));
        assert_eq!(health.may_dial(0, PEER, at(499)), Err(at(500)));
        assert_eq!((health.may_dial(0, PEER, at(500)), health.may_dial(1, PEER, at(0))), (Ok(()), Ok(())));
        assert!(health.is_open(0, PEER, at(0)));
        let mut without = RailHealth::new(1, Duration::ZERO, Duration::ZERO);
        without.dial_failed(0, PEER, at(0));
        assert!(!without.path_failed(0, PEER, true, at(0)));
        assert!(without.may_dial(0, PEER, at(0)).is_ok() && without.is_open(0, PEER, at(0)));
    }

    #[test]
    fn the_number_of_tracked_paths_is_bounded() {
        let mut health = health();
        for n in 0..WAYS_MAX as u64 + 10 {
            health.path_failed(0, &format!("{n}@a"), true, at(n));
        }
        assert_eq!(health.paths.len(), WAYS_MAX);
        assert!(health.is_open(0, "9@a", at(WAYS_MAX as u64)) && !health.is_open(0, "10@a", at(WAYS_MAX as u64)));
    }
}
