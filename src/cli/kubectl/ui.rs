//! `kubectl leasehold ui`: a page on 127.0.0.1 with the user's own rights, for one browser of this machine.
//!
//! The page asks twice a second for what it shows, so the answers are small, whatever the number of locks. The server
//! keeps the locks and sessions by two watches, and reads pods and rights only for the lock that is open. It decides
//! nothing and stores nothing; a release is the same request as that of `release`.

mod details;
mod files;
mod guard;
mod live;
mod lock;
mod routes;
mod watched;

use std::net::Ipv4Addr;
use std::sync::Arc;

use tokio::net::TcpListener;

use super::api::{Api, own_name};
use super::failure::Failure;
use super::terminal;
use crate::http::serve::{Bounds, serve};
use crate::shutdown;
use guard::Access;
use live::Live;

/// The arguments.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The locks of all namespaces.
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// The port on 127.0.0.1; 0: a free one.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    port: u16,
}

/// Serves the page until the user stops it.
pub(super) async fn run(api: Api, args: &Args) -> Result<(), Failure> {
    let stop = shutdown::on_signal()
        .map_err(|error| Failure::Usage(format!("cannot handle signals: {error}")))?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, args.port)).await;
    let listener = listener.map_err(|error| {
        Failure::Usage(format!(
            "cannot listen on 127.0.0.1:{}: {error}; choose another --port",
            args.port
        ))
    })?;
    let port = listener.local_addr().map_err(Failure::Output)?.port();
    let user = own_name(&api).await?;
    let namespace = (!args.all_namespaces).then(|| api.namespace.clone());
    let live = Arc::new(Live::new(api, user, namespace)?);
    let following = tokio::spawn(live::follow(live.clone()));
    let access = Arc::new(Access::new(port));
    // Not opened by a program: other users of this machine can read its arguments, and with them the secret.
    terminal::print(&format!(
        "http://127.0.0.1:{port}/#secret={}\n",
        access.secret()
    ))?;
    terminal::complain(
        "Open this link in a browser on this machine. It works once. Ctrl-C stops the page.",
    );
    serve(listener, routes::router(live, access), Bounds::ADMIN, stop).await;
    following.abort();
    Ok(())
}
