//! The injecting webhook: its result for real pods, what it may never do to any pod, and its answers over HTTP.

mod goldens;
mod properties;
mod reviews;
