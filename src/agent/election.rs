//! Elections, as this agent knows them: whether it leads, and who does otherwise.
//!
//! Who leads here is answered from the lease and the clock alone, and such an answer binds the
//! agent as any other. Others' leadership is what the store said last, with its age; it is asked
//! only when somebody wants to know and what is known is old.
//!
//! Readers of a lead may be others than the app that holds it, and that app speaks for itself alone.
//! Invariant: once it has ended its lease, by DELETE or with its connection, nobody is told of that
//! lease any more, and its grant is given up when the readers' time is over. So that it is succeeded
//! soon, they are told of a short time only. A lead that the agent runs for by itself is the whole
//! pod's: its readers are told the session's deadline, and whoever ends it ends it for all.
//! A loss, a person's force and a stop whose apps have ended end both, as they end everything.

pub(super) mod campaign;
pub(super) mod current;
pub(super) mod events;
mod interest;
pub(super) mod lead;
mod seen;
