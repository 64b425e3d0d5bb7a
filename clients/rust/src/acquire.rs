//! How a lock is acquired: attempt by attempt, until there is a lease, the wait is over, or an error
//! is not worth another attempt.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::sleep;

use crate::clock::now;
use crate::error::Error;
use crate::hold;
use crate::lease::Lease;
use crate::renewal::Renewal;
use crate::wire::Sidecar;

/// How long a sidecar may be away, or unable to answer, before the caller gets the error. A restart
/// takes a few seconds.
const OUTAGE: Duration = Duration::from_secs(30);

/// What to acquire, and how.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    /// The resource, or the election's name.
    pub(crate) name: String,
    /// `None`: without a limit.
    pub(crate) wait: Option<Duration>,
    /// `None`: held by a connection.
    pub(crate) ttl: Option<Duration>,
    pub(crate) owner_id: Option<String>,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) is_lead: bool,
    pub(crate) is_preferred: bool,
}

impl Wanted {
    pub(crate) fn metadata(&self) -> Option<BTreeMap<String, String>> {
        Some(self.metadata.clone()).filter(|metadata| !metadata.is_empty())
    }
}

/// One acquisition, with all its attempts.
pub(crate) struct Acquisition {
    pub(crate) sidecar: Sidecar,
    pub(crate) wanted: Wanted,
    until: Option<Duration>,
    /// When the first of the attempts failed that have failed in a row.
    outage_since: Option<Duration>,
    pauses: Pauses,
}

impl Acquisition {
    pub(crate) fn new(sidecar: Sidecar, wanted: Wanted) -> Self {
        let until = wanted.wait.map(|wait| now() + wait);
        Self {
            sidecar,
            wanted,
            until,
            outage_since: None,
            pauses: Pauses::default(),
        }
    }

    /// Acquires it. Dropping the future leaves nothing held, and dropping `renewal` gives back what
    /// its unanswered request may have acquired.
    pub(crate) async fn run(&mut self, renewal: &mut Option<Renewal>) -> Result<Lease, Error> {
        loop {
            let start = now();
            let attempt = match renewal {
                Some(renewal) => renewal.attempt(self).await,
                None => hold::attempt(self).await,
            };
            let error = match attempt {
                Ok(lease) => return Ok(lease),
                Err(error) => error,
            };
            if renewal.is_some() && now().saturating_sub(start) > OUTAGE {
                // The sidecar was there for most of this long poll.
                self.alive();
            }
            self.pause_after(error).await?;
        }
    }

    /// Returns the error if it is not worth another attempt.
    async fn pause_after(&mut self, error: Error) -> Result<(), Error> {
        let since = *self.outage_since.get_or_insert_with(now);
        if !error.may_pass() || self.is_over() || now().saturating_sub(since) >= OUTAGE {
            return Err(error);
        }
        if self.pauses.count == 0 {
            tracing::warn!(resource = self.wanted.name, %error, "lock not acquired yet");
        }
        sleep(self.pauses.next()).await;
        Ok(())
    }

    /// Ends an outage: the sidecar gave a sign of life.
    pub(crate) fn alive(&mut self) {
        self.outage_since = None;
        self.pauses = Pauses::default();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.until.is_some_and(|until| now() >= until)
    }

    /// Returns the rest of the wait in seconds, rounded up; `None` without a limit.
    pub(crate) fn left(&self) -> Option<u64> {
        Some(rounded_up(self.until?.saturating_sub(now())))
    }
}

/// Returns whole seconds.
pub(crate) fn rounded_up(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

/// Pauses between attempts, which grow and are random.
#[derive(Default)]
pub(crate) struct Pauses {
    count: u32,
}

impl Pauses {
    pub(crate) fn next(&mut self) -> Duration {
        let most = Duration::from_millis(100) * 2_u32.pow(self.count.min(5));
        self.count += 1;
        most.min(Duration::from_secs(2))
            .mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}
