//! The injecting webhook: what it makes of real pods, what it may never do to any pod, and what it
//! answers over HTTP.

mod goldens;
mod properties;
mod reviews;
