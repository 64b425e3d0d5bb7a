//! What the kubectl plugin says: objects and the API server's time go in, tables and sentences come out.
//!
//! Deliberately no I/O and no clock: `cli::kubectl` reads the objects and prints. The time is the one of the API
//! server's `Date` header, and a silence is measured from a time that the API server has stamped. What only a node's
//! clock tells is marked with `~`. An object that cannot be read is shown as such and hides no other.

pub mod check;
pub mod describe;
pub mod format;
pub mod freeing;
pub mod list;
pub mod page;
pub mod queue_chain;
pub mod release;
pub mod session_health;
pub mod sessions;
pub mod timeline;
pub mod top;
pub mod tree;
pub mod why;
pub mod words;
pub mod world;
