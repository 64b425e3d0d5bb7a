//! The chart, installed by real Helm into a real API server: what it creates, what an upgrade changes, what stays
//! after an uninstall. No node exists: nothing runs but what a test starts.

mod examples;
pub(crate) mod lifecycle;
pub(crate) mod release;
mod values;
