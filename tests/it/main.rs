//! Fast tests that need no control plane, in one binary.

mod crd_drift;
mod openapi;
mod tidy;
