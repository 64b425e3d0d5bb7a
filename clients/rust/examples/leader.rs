//! A leader that works term after term.

use std::time::Duration;

use leasehold_client::{Client, Election, Lease};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut work = vec!["second", "first"];
    let (done, is_done) = std::sync::mpsc::channel();
    let lead = move |lease: &Lease, election: &Election| {
        while lease.check().is_ok() && !election.is_stopping() {
            let Some(piece) = work.pop() else {
                let _stopped_before = done.send(());
                return election.wait(lease);
            };
            println!("does the {piece} piece with token {}", lease.token());
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    let election = Client::from_env()?.elect("billing", lead);
    is_done.recv()?;
    election.stop();
    Ok(())
}
