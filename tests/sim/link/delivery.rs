//! What happens to one call, drawn from the quality of the network before it is sent.

use std::time::Duration;

use fastrand::Rng;

/// The quality of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quality {
    /// Some milliseconds, no loss.
    Good,
    /// Some tens of milliseconds, occasional loss.
    Slow,
    /// Up to a second; one call in five fails.
    Bad,
}

/// A message is late after this time, which exceeds every quality's normal delay.
pub(super) const LATE: Duration = Duration::from_secs(1);

/// The store's handling of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The call is applied and answered.
    Applied,
    /// The call is applied, and its answer is lost.
    AnswerLost,
    /// The request never arrives.
    Lost,
    /// No server listens.
    Refused,
    /// The store is overloaded, and does not apply the call.
    Throttled,
    /// The call is not applied, and the answer leaves that open.
    Unclear,
}

/// What happens to one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delivery {
    pub(super) outcome: Outcome,
    pub(super) to_store: Duration,
    pub(super) to_caller: Duration,
    /// The connection breaks before the request arrives; the request still arrives.
    pub(super) broken_after: Option<Duration>,
    /// A proxy sends it again after this time, and returns the second answer.
    pub(super) again_after: Option<Duration>,
    /// Whether the message waits for the end of a cut, or is lost in it.
    pub(super) outlasts_cuts: bool,
}

impl Delivery {
    pub(super) fn of(quality: Quality, is_write: bool, ttl: Duration, random: &mut Rng) -> Self {
        let (slowest_ms, goes_wrong) = match quality {
            Quality::Good => (4, 0),
            Quality::Slow => (60, 3),
            Quality::Bad => (1_000, 20),
        };
        let mut delay = || Duration::from_millis(random.u64(..=slowest_ms));
        let mut delivery = Self {
            to_store: delay(),
            to_caller: delay(),
            outcome: Outcome::Applied,
            broken_after: None,
            again_after: None,
            outlasts_cuts: random.bool(),
        };
        if random.u8(..100) < goes_wrong {
            delivery.goes_wrong(is_write, ttl, random);
        }
        delivery
    }

    fn goes_wrong(&mut self, is_write: bool, ttl: Duration, random: &mut Rng) {
        // Later than its caller waits, or just late: up to twice the TTL.
        let late = ttl.mul_f64(2.0 * random.f64() * random.f64());
        self.outcome = match random.u8(..10) {
            0 => Outcome::Lost,
            1 => Outcome::Refused,
            2 => Outcome::Throttled,
            3 => Outcome::Unclear,
            4 | 5 => Outcome::AnswerLost,
            6 => {
                self.to_caller = late;
                Outcome::Applied
            }
            7 => {
                self.again_after = Some(late);
                Outcome::Applied
            }
            _ => {
                self.to_store = late;
                if is_write && random.bool() {
                    self.broken_after = Some(self.to_store.mul_f64(random.f64()));
                }
                Outcome::Applied
            }
        };
        if self.outcome == Outcome::Unclear && random.bool() {
            // It is applied nevertheless, now or later.
            self.outcome = Outcome::Applied;
            self.broken_after = Some(self.to_store);
            self.to_store = self.to_store.max(ttl.mul_f64(random.f64()));
        }
    }

    /// Returns the fault that a caller with an answer observed.
    pub(super) fn kind_heard(&self) -> Option<&'static str> {
        match self.outcome {
            Outcome::Refused => Some("refused"),
            Outcome::Throttled => Some("throttled"),
            Outcome::Unclear => Some("unclear answer"),
            Outcome::Applied if self.to_caller > LATE => Some("late answer heard"),
            Outcome::Applied | Outcome::AnswerLost | Outcome::Lost => None,
        }
    }
}
