//! The documents of the page that `kubectl leasehold ui` serves: rows, one lock, which pods wait for which, the last hour.
//!
//! Their texts are those of the commands. The page only lays them out.

pub mod hour;
pub mod lock;
pub mod rows;
pub mod waits;
