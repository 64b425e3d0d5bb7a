//! Fences on the real stores: a stale writer after a pause, random writers with crashes, and what a store may lose.
//! `make fences` runs this.

mod kube_rs;
mod mariadb;
mod objects;
mod postgresql;
mod proxy;
mod random;
mod redis;
mod s3;
mod server;
mod sqlite;
mod store;
mod story;
