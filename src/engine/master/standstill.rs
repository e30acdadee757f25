//! How the master knows that it stood still, and what its clients get for it. Pure: `now` comes in.
//!
//! A master whose process or machine was stopped for a minute would take everybody for dead whose pings it has not read yet. So the
//! clockwork says when it is going to look again, and when neither it nor any call has had the state for a while after that, nothing
//! ran, and clients live longer.
//!
//! They do not get all of it. A master that is short of processor time stands still again and again, and would never take anybody for
//! dead; but it reads what came between two standstills. So of each as much counts as a client that pings can spare several times. Of
//! a life of ten seconds that is 2.25: who is gone is found out after ten seconds at a master that is always two late, after twice that
//! where it is always four late, and after five looks at the most.

use std::time::Duration;

use crate::engine::base::Mono;

/// When nobody has the state for so much longer than was meant, the master stood still.
const STANDSTILL: Duration = Duration::from_millis(100);
/// Standstills of this length, all together, are worth a line.
const TOLD: Duration = Duration::from_secs(1);
/// Upstream's clients ping so often, which their life must be long enough for whatever else happens.
const PING_EVERY: Duration = Duration::from_secs(1);

/// What is known of the time in which nothing ran.
#[derive(Debug)]
pub(super) struct Standstills {
    /// When the clockwork is to look again.
    due: Mono,
    /// The latest time at which somebody had the state.
    latest: Mono,
    /// Of each standstill so much counts.
    counted: Duration,
    untold: Told,
}

/// What an operator may want to know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    /// For how long nothing ran.
    pub stood_still: Duration,
    /// How much longer clients live.
    pub longer: Duration,
}

impl Standstills {
    /// None so far; the clockwork looks at once.
    pub fn new(now: Mono, client_ttl: Duration) -> Standstills {
        // A part of what there is beside the pause between two pings, but never nothing.
        let counted = (client_ttl.saturating_sub(PING_EVERY) / 4).max(client_ttl / 8);
        Standstills { due: now, latest: now, counted, untold: Told::default() }
    }

    /// Somebody has the state, who asked the clock at `now` or got it at `now`: how much longer do clients live? To be done before
    /// anything is due and before the first ping is read, since pings that came meanwhile must find their clients alive.
    pub fn look(&mut self, now: Mono) -> Duration {
        let nothing_ran = now.since(self.latest.max(self.due));
        // Who asked earlier may get the state later; its time never goes back, or the same standstill would be seen twice.
        self.latest = self.latest.max(now);
        if nothing_ran < STANDSTILL { Duration::ZERO } else { self.note(nothing_ran) }
    }

    #[cold]
    fn note(&mut self, nothing_ran: Duration) -> Duration {
        let longer = nothing_ran.saturating_sub(self.counted);
        self.untold.stood_still += nothing_ran;
        self.untold.longer += longer;
        longer
    }

    /// The latest time that [`look`](Standstills::look) was told: the state's time.
    pub fn latest(&self) -> Mono {
        self.latest
    }

    /// The clockwork is going to look again at `due`.
    pub fn expect(&mut self, due: Mono) {
        self.due = due;
    }

    /// What came together since the last time, if it is worth a line.
    pub fn tell(&mut self) -> Option<Told> {
        let told = std::mem::take(&mut self.untold);
        (told.stood_still >= TOLD).then_some(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Mono {
        Mono::from_ms(ms)
    }

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// At 1,000 s, with clients that live for 10 s.
    fn standstills() -> Standstills {
        Standstills::new(at(1_000_000), ms(10_000))
    }

    #[test]
    fn what_is_beyond_a_part_of_a_clients_life_is_given_and_all_of_it_is_told() {
        let mut s = standstills();
        s.expect(at(1_001_000));
        assert_eq!(s.look(at(1_003_250)), ms(0));
        s.expect(at(1_004_000));
        assert_eq!(s.look(at(1_064_000)), ms(57_750));
        assert_eq!(s.tell(), Some(Told { stood_still: ms(62_250), longer: ms(57_750) }));
        assert_eq!(s.tell(), None);
    }

    #[test]
    fn the_shortest_life_that_can_be_asked_for_has_room_for_a_ping_and_a_standstill() {
        let mut s = Standstills::new(at(0), ms(2_000));
        assert_eq!(s.look(at(60_000)), ms(59_750));
    }

    #[test]
    fn a_standstill_is_seen_once_though_somebody_asked_for_the_time_before_it() {
        let mut s = standstills();
        let asked = at(1_000_500);
        s.expect(at(1_001_000));
        assert_eq!(s.look(at(1_061_000)), ms(57_750), "whoever went on first");
        assert_eq!((s.look(asked), s.latest()), (ms(0), at(1_061_000)));
        // the clockwork plans from the state's time, not from when it asked
        s.expect(s.latest() + ms(1));
        assert_eq!(s.look(at(1_061_002)), ms(0));
    }

    #[test]
    fn time_in_which_calls_were_answered_is_no_standstill_however_late_the_clockwork_is() {
        let mut s = standstills();
        s.expect(at(1_000_001));
        for i in 1..=1_000 {
            assert_eq!(s.look(at(1_000_000 + 90 * i)), ms(0));
        }
        assert_eq!(s.tell(), None);
    }
}
