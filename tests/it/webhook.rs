//! The injecting webhook: its result for real pods, what holds for any pod, and its answers over
//! HTTP.

mod goldens;
mod properties;
mod reviews;
