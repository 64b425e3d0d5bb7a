//! A way to the sidecar on which something happens to requests or answers.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Dropping it refuses further connections.
pub(super) struct Way {
    url: String,
    work: JoinHandle<()>,
}

#[derive(Clone, Copy)]
enum Mishap {
    /// The first request of each connection arrives late, as on a busy machine.
    Delay(Duration),
    /// The first connection breaks when the answer is on its way.
    LostAnswer,
}

impl Way {
    pub(super) async fn slow(url: &str, delay: Duration) -> Self {
        Self::to(url, Mishap::Delay(delay)).await
    }

    pub(super) async fn losing_an_answer(url: &str) -> Self {
        Self::to(url, Mishap::LostAnswer).await
    }

    async fn to(url: &str, mishap: Mishap) -> Self {
        let address = url.trim_start_matches("http://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let work = tokio::spawn(async move {
            for count in 0.. {
                let (app, _) = listener.accept().await.unwrap();
                tokio::spawn(pass(app, address.clone(), mishap, count));
            }
        });
        Self { url, work }
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.work.abort();
    }
}

async fn pass(mut app: TcpStream, address: String, mishap: Mishap, before: usize) {
    app.readable().await.unwrap();
    // The request has been sent by now.
    match mishap {
        Mishap::Delay(delay) => tokio::time::sleep(delay).await,
        Mishap::LostAnswer if before == 0 => return lose_the_answer(app, address).await,
        Mishap::LostAnswer => {}
    }
    let mut sidecar = TcpStream::connect(address).await.unwrap();
    let _reset_by_one_of_them = copy_bidirectional(&mut app, &mut sidecar).await;
}

async fn lose_the_answer(mut app: TcpStream, address: String) {
    let mut sidecar = TcpStream::connect(address).await.unwrap();
    let (mut from_app, _) = app.split();
    let (mut from_sidecar, mut to_sidecar) = sidecar.split();
    let mut request = [0; 4096];
    let mut answer = [0; 1];
    loop {
        tokio::select! {
            read = from_app.read(&mut request) => {
                let count = read.unwrap();
                assert!(count > 0, "it hung up");
                to_sidecar.write_all(&request[..count]).await.unwrap();
            }
            read = from_sidecar.read(&mut answer) => {
                assert_eq!(read.unwrap(), 1, "an answer");
                return;
            }
        }
    }
}
