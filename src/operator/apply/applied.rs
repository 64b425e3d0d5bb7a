//! The result of an action.

use crate::operator::errors;
use crate::operator::metrics::Outcome;
use crate::operator::observation::Observation;
use crate::store::StoreError;

/// The result of an action.
pub(in crate::operator) struct Applied {
    pub(in crate::operator) outcome: Outcome,
    pub(in crate::operator) observation: Option<Observation>,
    pub(in crate::operator) error: Option<StoreError>,
    /// What to do if a permission is missing.
    pub(in crate::operator) advice: Option<&'static str>,
}

impl Applied {
    pub(super) fn done(observation: Observation) -> Self {
        Self {
            outcome: Outcome::Done,
            observation: Some(observation),
            error: None,
            advice: None,
        }
    }

    pub(super) fn failed(error: StoreError) -> Self {
        Self {
            outcome: Outcome::Failed,
            observation: None,
            advice: errors::advice(&error, errors::RIGHTS),
            error: Some(error),
        }
    }

    /// Sets what to do if the permission is missing.
    pub(super) fn with_rights(self, rights: &'static str) -> Self {
        let advice = self.error.as_ref();
        let advice = advice.and_then(|error| errors::advice(error, rights));
        Self { advice, ..self }
    }

    /// The result of a read.
    pub(super) fn read(read: Result<Observation, StoreError>) -> Self {
        read.map_or_else(Self::failed, Self::done)
    }

    /// The result of a write. After a conflict or an unknown outcome, the re-read object decides.
    pub(super) async fn written(
        written: Result<Observation, StoreError>,
        reread: impl Future<Output = Result<Observation, StoreError>>,
    ) -> Self {
        match written {
            Err(StoreError::Conflict | StoreError::NotFound(_) | StoreError::Ambiguous(_)) => {
                match reread.await {
                    Ok(observation) => Self {
                        outcome: Outcome::Conflict,
                        ..Self::done(observation)
                    },
                    Err(error) => Self::failed(error),
                }
            }
            Err(error) => Self::failed(error),
            Ok(observation) => Self::done(observation),
        }
    }
}
