//! Requests for locks: each waits for the core's answer, and tells the core if its client hangs up.

use tokio::sync::oneshot;

use crate::protocol::time::Moment;
use crate::store::StoreError;

use super::api::{AcquireError, AcquireRequest, Acquired};
use super::core::effect::{CallId, Input, Reply};
use super::driver::Driver;
use super::release::explained;

/// A call that waits for its answer. Dropping it is hanging up.
struct Waiting {
    driver: Driver,
    call: CallId,
    answer: oneshot::Receiver<Reply>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.answer.is_terminated() {
            return;
        }
        // From here on the driver gets back what it sends.
        self.answer.close();
        match self.answer.try_recv() {
            Ok(reply) => self.driver.undelivered(reply),
            Err(_none) => self.driver.feed(Input::HangUp(self.call)),
        }
    }
}

/// Takes a lock: one try, or as long as the request waits.
pub(super) async fn acquire(
    driver: &Driver,
    request: AcquireRequest,
    arrived: Moment,
) -> Result<Acquired, AcquireError> {
    let count = request.clone();
    let outcome = match ask_core(driver, request, arrived).await {
        Err(AcquireError::RequestEnded { lease, why }) => {
            let why = explained(driver, &lease, why).await;
            Err(AcquireError::RequestEnded { lease, why })
        }
        outcome => outcome,
    };
    count_acquire(driver, &count, arrived, &outcome);
    outcome
}

async fn ask_core(
    driver: &Driver,
    request: AcquireRequest,
    arrived: Moment,
) -> Result<Acquired, AcquireError> {
    let (call, answer) = driver.with_state(|state| {
        let (call, answer) = state.expect_reply();
        let input = Input::Acquire(call, Box::new(request), arrived);
        driver.step(state, |core, cx| core.handle(cx, input));
        (call, answer)
    });
    let mut waiting = Waiting {
        driver: driver.clone(),
        call,
        answer,
    };
    match (&mut waiting.answer).await {
        Ok(Reply::Acquired(outcome)) => *outcome,
        Ok(Reply::Done) | Err(_) => Err(AcquireError::Store(StoreError::Ambiguous(
            "the wait was cut off".into(),
        ))),
    }
}

fn count_acquire(
    driver: &Driver,
    request: &AcquireRequest,
    arrived: Moment,
    outcome: &Result<Acquired, AcquireError>,
) {
    let name = match outcome {
        Ok(Acquired::Granted {
            replayed: false, ..
        }) => "granted",
        Ok(Acquired::Granted { replayed: true, .. }) => "replayed",
        Ok(Acquired::Held(_)) => {
            driver.metrics.contended(request.resource.as_str());
            "held"
        }
        Err(AcquireError::Store(
            StoreError::Unauthenticated(_)
            | StoreError::Denied(_)
            | StoreError::DeniedByPolicy(_)
            | StoreError::QuotaExceeded(_),
        )) => "denied",
        Err(AcquireError::Resuming) => "unavailable",
        Err(AcquireError::Store(error)) if error.is_transient() => "unavailable",
        Err(_) => "failed",
    };
    let took = driver.now().since(arrived);
    if request.wait.is_zero() {
        driver.metrics.acquired(name, took);
    } else {
        driver.metrics.waited(name, took);
    }
}
