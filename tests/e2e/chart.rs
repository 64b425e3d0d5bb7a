//! The chart, installed by real Helm into a real API server: what it makes there, what an upgrade
//! changes, what stays when it goes. No node: nothing runs but what a test starts.

mod examples;
mod lifecycle;
mod release;
mod values;
