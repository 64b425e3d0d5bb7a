//! What becomes of one call, drawn by the weather before it sets out.

use std::time::Duration;

use fastrand::Rng;

/// How bad a network is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    /// Some milliseconds, and nothing is lost.
    Calm,
    /// Some tens of milliseconds; now and then something is lost.
    Windy,
    /// Up to a second; one call in five goes wrong.
    Stormy,
}

/// From when on something is late: more than any weather makes of it.
pub(super) const LATE: Duration = Duration::from_secs(1);

/// What the store makes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// What it always does.
    Applied,
    /// The same, and nobody hears of it.
    AnswerLost,
    /// The request never arrives.
    Lost,
    /// Nobody listens.
    Refused,
    /// The store has too much to do, and does nothing.
    Throttled,
    /// Nothing is done, and the answer does not say so.
    Unclear,
}

/// What becomes of one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fate {
    pub(super) outcome: Outcome,
    pub(super) to_store: Duration,
    pub(super) to_caller: Duration,
    /// The connection breaks before the request arrives, which it does all the same.
    pub(super) broken_after: Option<Duration>,
    /// Somebody on the way sends it once more, so much later, and hands on the second answer.
    pub(super) again_after: Option<Duration>,
    /// Whether it waits until a cut is mended, or is lost in it.
    pub(super) outlasts_cuts: bool,
}

impl Fate {
    pub(super) fn of(weather: Weather, is_write: bool, ttl: Duration, random: &mut Rng) -> Self {
        let (slowest_ms, goes_wrong) = match weather {
            Weather::Calm => (4, 0),
            Weather::Windy => (60, 3),
            Weather::Stormy => (1_000, 20),
        };
        let mut delay = || Duration::from_millis(random.u64(..=slowest_ms));
        let mut fate = Self {
            to_store: delay(),
            to_caller: delay(),
            outcome: Outcome::Applied,
            broken_after: None,
            again_after: None,
            outlasts_cuts: random.bool(),
        };
        if random.u8(..100) < goes_wrong {
            fate.goes_wrong(is_write, ttl, random);
        }
        fate
    }

    fn goes_wrong(&mut self, is_write: bool, ttl: Duration, random: &mut Rng) {
        // Later than its caller waits, or just late: up to twice what a session lives.
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
            // It is done all the same, now or later.
            self.outcome = Outcome::Applied;
            self.broken_after = Some(self.to_store);
            self.to_store = self.to_store.max(ttl.mul_f64(random.f64()));
        }
    }

    /// What went wrong for the caller, who heard the answer.
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
