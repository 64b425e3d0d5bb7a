//! Locks with fencing tokens for apps on Kubernetes, held by the Leasehold sidecar of the app's pod.
//!
//! ```no_run
//! use std::time::Duration;
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = leasehold_client::Client::from_env()?;
//! let lease = client.lock("billing").wait(Duration::from_secs(60)).await?;
//! for invoice in ["a", "b", "c"] {
//!     lease.check()?;
//!     println!("charges {invoice} with token {}", lease.token());
//! }
//! lease.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! One thread, `leasehold`, keeps all leases of the process. So they need nothing from the app's
//! threads, and it may use any runtime, or none.
//!
//! What no client can do is stop code between two checks. So send the token with each write, and
//! have the guarded resource refuse a smaller one.

mod acquire;
mod api;
mod client;
mod clock;
mod elect;
mod engine;
mod error;
#[cfg(feature = "kube")]
mod fence;
mod hold;
mod keeper;
mod lease;
mod renewal;
mod wire;

pub use client::{Client, Lock};
pub use elect::Election;
pub use error::{Error, Holder};
#[cfg(feature = "kube")]
pub use fence::{Unsent, fenced};
pub use lease::{HEADER_NAME, Lease, ReleaseRequest};
pub use wire::InvalidAddress;
