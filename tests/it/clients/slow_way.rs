//! A way to the sidecar that delays each first request of a connection, as a busy machine would.

use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Dropping it closes its connections.
pub(super) struct SlowWay {
    url: String,
    work: JoinHandle<()>,
}

impl SlowWay {
    pub(super) async fn to(url: &str, delay: Duration) -> Self {
        let address = url.trim_start_matches("http://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let work = tokio::spawn(async move {
            loop {
                let (app, _) = listener.accept().await.unwrap();
                tokio::spawn(pass(app, address.clone(), delay));
            }
        });
        Self { url, work }
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for SlowWay {
    fn drop(&mut self) {
        self.work.abort();
    }
}

async fn pass(mut app: TcpStream, address: String, delay: Duration) {
    app.readable().await.unwrap();
    // The request has been sent by now.
    tokio::time::sleep(delay).await;
    let mut sidecar = TcpStream::connect(address).await.unwrap();
    let _reset_by_one_of_them = copy_bidirectional(&mut app, &mut sidecar).await;
}
