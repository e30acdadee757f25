//! Which devices and ways are left alone for a while, and for how long.
//!
//! A fault of ours (a key, a length) says something of the device: after a row of them without a success the device is off. Any other
//! says something of the way to the peer: that is paused. Who has no other way goes the paused one all the same (see
//! [`Router::route`](crate::engine::transfer::rdma::route::Router::route)).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::engine::base::Mono;

/// This many faults of a device in a row switch it off (upstream's number).
const FAULTS_MAX: u32 = 32;
/// This many errors of a way within [`ERRORS_WITHIN`] pause it, whatever else is there (upstream's numbers).
const ERRORS_MAX: usize = 5;
/// See [`ERRORS_MAX`].
const ERRORS_WITHIN: Duration = Duration::from_secs(5);
/// How long a device that is off because of its faults stays so.
const OFF_FOR: Duration = Duration::from_secs(30);
/// Most ways that are remembered; those that were paused longest ago give way.
const WAYS_MAX: usize = 4096;

/// What is known of devices and ways.
#[derive(Clone, Debug)]
pub struct Health {
    devices: Vec<Device>,
    /// By our device and the peer's path.
    ways: BTreeMap<(usize, String), Way>,
    rail_pause: Duration,
    dial_pause: Duration,
}

#[derive(Clone, Debug, Default)]
struct Device {
    faults: u32,
    off: Option<Off>,
}

/// Why a device is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Off {
    /// In words.
    pub why: String,
    /// Until then.
    pub until: Mono,
}

#[derive(Clone, Debug, Default)]
struct Way {
    errors: VecDeque<Mono>,
    paused: Option<Mono>,
    no_dial: Option<Mono>,
}

impl Way {
    fn is_over(&self, now: Mono) -> bool {
        let over = |until: Option<Mono>| until.is_none_or(|until| now >= until);
        over(self.paused) && over(self.no_dial) && self.errors.back().is_none_or(|at| now.since(*at) >= ERRORS_WITHIN)
    }
}

impl Health {
    /// Of `devices` devices, none of which is off. The pauses are `MC_RDMA_RAIL_PAUSE_SECONDS` and `MC_CONN_PAUSE_TTL_MS`.
    pub fn new(devices: usize, rail_pause: Duration, dial_pause: Duration) -> Health {
        Health { devices: vec![Device::default(); devices], ways: BTreeMap::new(), rail_pause, dial_pause }
    }

    /// Is there nothing to take into account? Then nobody needs to ask for more.
    pub fn is_untroubled(&self) -> bool {
        self.ways.is_empty() && self.devices.iter().all(|device| device.off.is_none() && device.faults == 0)
    }

    /// Why device `local` is not to be used now; `None` when it is.
    pub fn off(&self, local: usize, now: Mono) -> Option<&Off> {
        let off = self.devices.get(local)?.off.as_ref()?;
        (now < off.until).then_some(off)
    }

    /// May the way be used now?
    pub fn is_open(&self, local: usize, peer: &str, now: Mono) -> bool {
        self.way(local, peer).is_none_or(|way| way.paused.is_none_or(|until| now >= until))
    }

    /// May the peer be dialled now? If not, from then on.
    ///
    /// # Errors
    /// Not before this moment.
    pub fn may_dial(&self, local: usize, peer: &str, now: Mono) -> Result<(), Mono> {
        match self.way(local, peer).and_then(|way| way.no_dial) {
            Some(until) if now < until => Err(until),
            _ => Ok(()),
        }
    }

    fn way(&self, local: usize, peer: &str) -> Option<&Way> {
        // No text is made where there is nothing to find.
        if self.ways.is_empty() { None } else { self.ways.get(&(local, peer.to_owned())) }
    }

    /// Something went well on the device.
    pub fn succeeded(&mut self, local: usize) {
        if let Some(device) = self.devices.get_mut(local) {
            device.faults = 0;
        }
    }

    /// A fault of ours. Is the device off because of it, from now on?
    pub fn device_failed(&mut self, local: usize, why: &str, now: Mono) -> bool {
        let Some(device) = self.devices.get_mut(local) else { return false };
        device.faults += 1;
        if device.faults < FAULTS_MAX {
            return false;
        }
        device.faults = 0;
        let why = format!("{FAULTS_MAX} faults in a row, the last: {why}");
        device.off = Some(Off { why, until: now + OFF_FOR });
        true
    }

    /// An error of the way to `peer`; `another` = there is another way that can be used. Is it paused because of it, from now on?
    pub fn way_failed(&mut self, local: usize, peer: &str, another: bool, now: Mono) -> bool {
        let pause = self.rail_pause;
        let way = self.note(local, peer, now);
        way.errors.push_back(now);
        while way.errors.len() > ERRORS_MAX || way.errors.front().is_some_and(|at| now.since(*at) > ERRORS_WITHIN) {
            way.errors.pop_front();
        }
        let was = way.paused.is_some_and(|until| now < until);
        if (another || way.errors.len() >= ERRORS_MAX) && pause > Duration::ZERO {
            way.paused = Some(now + pause);
        }
        !was && way.paused.is_some_and(|until| now < until)
    }

    /// The peer could not be connected on this way.
    pub fn dial_failed(&mut self, local: usize, peer: &str, now: Mono) {
        if self.dial_pause > Duration::ZERO {
            let until = now + self.dial_pause;
            self.note(local, peer, now).no_dial = Some(until);
        }
    }

    /// The peer was connected on this way: nothing of old counts.
    pub fn connected(&mut self, local: usize, peer: &str) {
        if !self.ways.is_empty() {
            self.ways.remove(&(local, peer.to_owned()));
        }
    }

    /// Forget what is over.
    pub fn sweep(&mut self, now: Mono) {
        self.ways.retain(|_, way| !way.is_over(now));
        for device in &mut self.devices {
            device.off.take_if(|off| now >= off.until);
        }
    }

    fn note(&mut self, local: usize, peer: &str, now: Mono) -> &mut Way {
        let key = (local, peer.to_owned());
        if self.ways.len() >= WAYS_MAX && !self.ways.contains_key(&key) {
            self.sweep(now);
            let oldest = self.ways.iter().min_by_key(|(_, way)| way.errors.back().copied().or(way.no_dial));
            if self.ways.len() >= WAYS_MAX
                && let Some(oldest) = oldest.map(|(key, _)| key.clone())
            {
                self.ways.remove(&oldest);
            }
        }
        self.ways.entry(key).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: &str = "b:1@rxe0";

    fn health() -> Health {
        Health::new(2, Duration::from_secs(30), Duration::from_millis(500))
    }

    fn at(ms: u64) -> Mono {
        Mono::from_ms(ms)
    }

    #[test]
    fn a_way_that_failed_is_paused_where_there_is_another() {
        let mut health = health();
        assert!(health.is_untroubled() && health.is_open(0, PEER, at(0)));
        assert!(health.way_failed(0, PEER, true, at(0)));
        assert!(!health.way_failed(0, PEER, true, at(1)), "it is paused already");
        assert!(!health.is_open(0, PEER, at(30_000)), "from the last error on");
        assert!(health.is_open(1, PEER, at(0)) && health.is_open(0, "c:1@rxe0", at(0)));
        assert!(health.is_open(0, PEER, at(30_001)));
        health.sweep(at(30_001));
        assert!(health.is_untroubled());
    }

    #[test]
    fn the_only_way_is_paused_after_five_errors_within_five_seconds() {
        let mut health = health();
        for ms in [0, 1000, 2000, 3000] {
            assert!(!health.way_failed(0, PEER, false, at(ms)));
        }
        assert!(!health.way_failed(0, PEER, false, at(5500)), "the first is too long ago");
        assert!(health.is_open(0, PEER, at(5500)));
        assert!(health.way_failed(0, PEER, false, at(5600)));
        assert!(!health.is_open(0, PEER, at(5600)));
        health.connected(0, PEER);
        assert!(health.is_open(0, PEER, at(5600)) && health.is_untroubled());
    }

    #[test]
    fn thirty_two_faults_in_a_row_switch_a_device_off_and_a_success_between_them_does_not() {
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
        assert_eq!(health.off(1, at(0)).unwrap().why, "32 faults in a row, the last: local protection error");
        assert!(health.off(0, at(0)).is_none() && health.off(9, at(0)).is_none());
        assert!(health.off(1, at(29_999)).is_some() && health.off(1, at(30_000)).is_none());
    }

    #[test]
    fn nobody_dials_for_the_pause_after_a_dial_that_failed() {
        let mut health = health();
        health.dial_failed(0, PEER, at(0));
        assert_eq!(health.may_dial(0, PEER, at(499)), Err(at(500)));
        assert_eq!((health.may_dial(0, PEER, at(500)), health.may_dial(1, PEER, at(0))), (Ok(()), Ok(())));
        assert!(health.is_open(0, PEER, at(0)));
        let mut without = Health::new(1, Duration::ZERO, Duration::ZERO);
        without.dial_failed(0, PEER, at(0));
        assert!(!without.way_failed(0, PEER, true, at(0)));
        assert!(without.may_dial(0, PEER, at(0)).is_ok() && without.is_open(0, PEER, at(0)));
    }

    #[test]
    fn no_more_ways_are_remembered_than_the_bound() {
        let mut health = health();
        for n in 0..WAYS_MAX as u64 + 10 {
            health.way_failed(0, &format!("{n}@a"), true, at(n));
        }
        assert_eq!(health.ways.len(), WAYS_MAX);
        assert!(health.is_open(0, "9@a", at(WAYS_MAX as u64)) && !health.is_open(0, "10@a", at(WAYS_MAX as u64)));
    }
}
